§import a from "a";
§/** Adds. */
export function add(a, b) {
  return a + b;
}
§const twice = (a) => {
  return a + a;
};
§export class Cart {
§  // The size.
  size() { return 1; }
§  add() { }
}
§add(1);
