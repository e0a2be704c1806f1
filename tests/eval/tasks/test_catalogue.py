from ctx_embed.eval.tasks.catalogue import DEFAULT_TASKS, MTEB_PUBLISHED, PUBLISHED_SOURCES, SUITES, TASKS, find_tasks
from tests.eval.conftest import write_collection
from tests.helpers.errors import error


def test_the_suites():
    assert [task.name for task in find_tasks([])] == ["MR", "CR", "SUBJ", "MPQA"]
    tasks = find_tasks(SUITES["mteb"])
    assert [task.kind for task in tasks] == 3 * ["probe"] + 5 * ["similarity"]
    per_label = {"MTEB-Banking77": 8, "MTEB-AmazonCounterfactual": 32, "MTEB-IMDB": 8}
    assert {task.name: task.per_label for task in tasks[:3]} == per_label
    # One correlation over all pairs, none left out.
    assert {file.subset for task in tasks[3:] for layout in task.layouts for file in layout} == {"test"}
    assert not any(task.without for task in tasks[3:])
    assert all(task.published["all-MiniLM-L6-v2 (published)"] for task in tasks)
    assert set(MTEB_PUBLISHED) == {"source", "date", "scores"}


def test_every_published_figure_has_a_source_and_every_task_its_parts():
    for task in TASKS.values():
        assert set(task.published) <= set(PUBLISHED_SOURCES)
        subsets = [{file.subset for file in layout} for layout in task.layouts]
        assert all(other == subsets[0] for other in subsets)
        if task.hub is not None:
            sources = (task.hub, *task.hub.others)
            assert {subset for source in sources for subset in source.splits} == subsets[0]
    for name in DEFAULT_TASKS:
        sources = {source for source in PUBLISHED_SOURCES if not source.endswith("(published)")}
        assert sources - {"BM25", "BM25 (BEIR)"} == set(TASKS[name].published)


def test_names_and_paths_each_once_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.tsv"
    path.write_text("a\tb\n")
    write_collection(tmp_path / "beir")
    tasks = find_tasks(["STSB", str(path), "MR", "STSB", str(tmp_path / "beir")])
    assert [task.name for task in tasks] == ["STSB", str(path), "MR", str(tmp_path / "beir")]
    assert [task.kind for task in tasks] == ["similarity", "probe", "probe", "retrieval"]
    message = f"{tmp_path}: the folder has no corpus.jsonl; a task must be a name, a labelled file or a folder in BEIR"
    assert error(find_tasks, [str(tmp_path)]).startswith(message)
    assert error(find_tasks, ["sub/mine"]) == "sub/mine: no such file"
