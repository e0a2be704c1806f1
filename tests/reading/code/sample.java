§package shop;
§/** A cart. */
@Deprecated
public class Cart {
  int n;
§  @Override
  public int size() { return 1; }
§  Cart() { }
}
