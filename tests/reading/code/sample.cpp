§namespace shop {
§// Holds.
template <class T>
class Cart {
 public:
§  // Adds.
  void add(T t) {}
§  int size() { return 1; }
};
§int f() { return 2; }
}
