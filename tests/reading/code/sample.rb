§require 'a'
§# A shop.
module Shop
§  class Cart
§    # The size.
    def size
      1
    end
§    def self.add; end
  end
end
§def top; end
