§interface A { a: string }
§export abstract class B {
§  constructor(private a: A) {}
§  @log()
  m(): void {}
}
§export default function g() {}
