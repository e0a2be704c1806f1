§use a;
§/// A cart.
#[derive(Debug)]
pub struct Cart { n: i32 }
§impl Cart {
§    /// New.
    pub fn new() -> Cart { Cart { n: 1 } }
§    fn size(&self) {}
}
§fn main() {}
