from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from ctx_embed.errors import InputError
from ctx_embed.eval.encoders import WORD, Tfidf
from tests.conftest import SENTENCES

TEXTS = [*SENTENCES, "the cat sat", "", "nowhere-else word"]


def test_agrees_with_a_vectorizer_fitted_on_the_training_rows():
    train, other = np.array([0, 1, 2, 3, 4, 5]), np.array([6, 7, 8, 9, 10])
    ours = Tfidf(TEXTS)(train, other)
    reference = TfidfVectorizer(token_pattern=WORD, ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    fitted = reference.fit_transform([TEXTS[row] for row in train])
    np.testing.assert_allclose(ours[0].toarray(), fitted.toarray())
    np.testing.assert_allclose(ours[1].toarray(), reference.transform([TEXTS[row] for row in other]).toarray())
    # No word of theirs is known.
    assert ours[1][[3, 4]].sum() == 0


def test_no_word_at_all():
    with pytest.raises(InputError, match=r"^tfidf: at least one text must hold a word, got none$"):
        Tfidf(["", "!?"])
