§package shop
import "fmt"
§// F does.
func F() int {
	return 1
}
§type Cart struct { n int }
§func (c Cart) Size() {}
