"""What a model's attention looked at, token by token, and how to show it."""

from ctx_embed.explanations.explanation import ContextPath, Contributions, Explanation, contributions, explain
from ctx_embed.explanations.writing import write

__all__ = ["ContextPath", "Contributions", "Explanation", "contributions", "explain", "write"]
