"""The texts of a distillation: read, mixed, and checked for what must not be trained on."""
