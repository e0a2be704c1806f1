§using System;
§namespace Shop {
§  /// Holds.
  [Serializable]
  public class Cart {
§    public int Size { get; set; }
§    void Add() { }
  }
}
