import gzip
import os
from pathlib import Path

from tokenizers import Tokenizer

from tests.helpers.cli import Command

COMMAND = Command("vocab")
run, fails = COMMAND.run, COMMAND.fails


OUT = "out/tokenizer.json"


def test_a_vocabulary_from_files_is_replaced_when_the_new_one_is_complete(here, sentences):
    # In the output's folder a failure leaves nothing.
    Path("out").mkdir()
    Path("a.txt").write_text("\n\n".join(sentences) + "\n")
    Path("b.gz").write_bytes(gzip.compress(b"zebra zebra\nzebra\n"))
    Path("c.jsonl").write_text('{"text": "quokka quokka quokka quokka"}\n')
    result = run("a.txt", "b.gz", "c.jsonl", "-o", OUT, "--vocabulary-size", 80)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{OUT}: 80 entries\n", "")
    assert fails("a.txt", "missing", "-o", OUT, "--overwrite") == "missing: no such file"
    # Found out before any text is read.
    assert fails("missing", "-o", "out") == "cannot write out: the output must be a file, got a folder"
    assert os.listdir("out") == ["tokenizer.json"]
    learned = Tokenizer.from_file(OUT)
    assert learned.get_vocab_size() == 80
    assert learned.encode("Zebra quokka").tokens == ["zebra", "quokka"]
    assert run("-", "-o", OUT, "--overwrite", input="the cat\nthe cat\n").stdout == f"{OUT}: 15 entries\n"
