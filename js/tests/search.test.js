// A search ranks as the library does. tests/site/test_export.py writes the folder that SITE names, and runs this.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";

import { PieceError, Search } from "../src/search.js";
import { asked, files } from "./files.js";

const folder = process.env.SITE;
const skip = folder ? false : "SITE names no folder; run pytest tests/site";
const queries = folder ? JSON.parse(readFileSync(join(folder, "queries.json"), "utf-8")) : [];
const long = queries.filter(([, expected]) => expected.length >= 10);
const near = (one, other, most) => one === other || Math.abs(one - other) <= most;

test("with all pieces read, hits, their order and their scores are those of Python", { skip }, async () => {
  const search = new Search(folder, { get: files, probes: Infinity });
  for (const [query, expected] of queries) {
    const { hits } = await search.search(query, 20);
    const said = JSON.stringify(query);
    assert.equal(hits.length, expected.length, said);
    const rest = [...expected];
    hits.forEach(({ page, text, score, fused, relevance }, place) => {
      // Hits that rounding alone tells apart may change places, and the last one may give way to the next.
      const at = rest.findIndex(([source, of]) => source === page && of === text);
      assert.ok(near(fused, expected[place][3], 5e-5) && (at >= 0 || near(fused, expected.at(-1)[3], 5e-5)), `${said} ${place}: ${page} ${text}`);
      if (at < 0) return;
      const [[, , cosine, mean, relevant]] = rest.splice(at, 1);
      assert.ok(near(score, cosine, 2e-5) && near(fused, mean, 5e-5) && near(relevance, relevant, 1e-3), `${said} ${place}: ${[score, cosine, fused, mean, relevance, relevant]}`);
    });
  }
});

test("with some pieces, the best hits are mostly the same", { skip }, async () => {
  const search = new Search(folder, { get: files });
  let same = 0;
  for (const [query, expected] of long) {
    const best = expected.slice(0, 10).map(([, text]) => text);
    same += (await search.search(query)).hits.filter(({ text }) => best.includes(text)).length / 10;
  }
  assert.ok(long.length === 0 || same / long.length > 0.75, `${same / long.length}`);
});

test("more marks than a call takes arguments are read, and a text of one word is cut in linear time", { skip }, async () => {
  const search = new Search(folder, { get: files });
  for (const query of [`a${"\u0301".repeat(200_000)}`, "[".repeat(150_000)]) {
    await search.search(query);
    await search.encoder.embed(query);
  }
  const begin = performance.now();
  const { snippet } = search.asking.snippet(new Set(["cat", "dog"]), "cat dog ".repeat(30_000), null);
  assert.ok(performance.now() - begin < 3000);
  assert.equal(snippet.filter(({ marked }) => marked).length, 70);
});

test("a search waits for two answers of the host, and for one if its words were got ready", { skip }, async () => {
  const waiting = [];
  const search = new Search(folder, { get: (path) => new Promise((answer) => waiting.push(() => answer(files(path)))) });
  // Return how many times some work waits, and for how many files at most.
  const waits = async (work) => {
    let [times, most, isDone] = [0, 0, false];
    const done = work.finally(() => (isDone = true));
    while (!isDone) {
      await setTimeout(10);
      if (waiting.length) times += 1;
      most = Math.max(most, waiting.length);
      waiting.splice(0).forEach((answer) => answer());
    }
    await done;
    return { times, most };
  };
  await waits(search.start());
  for (const [place, [query]] of long.filter(([query]) => /^[ -~]*$/.test(query)).slice(0, 20).entries()) {
    if (place % 2) await waits(search.prepare(query));
    const { times, most } = await waits(search.search(query));
    assert.ok(times <= (place % 2 ? 1 : 2), `${query}: ${times}`);
    assert.ok(!(place % 2) || most <= 10, `${query}: ${most} files`);
  }
});

test("a search that fails works once the files are there", { skip }, async () => {
  let offline = true;
  const get = async (path) => (offline ? Promise.reject(new TypeError("offline")) : files(path));
  const search = new Search(folder, { get });
  await assert.rejects(search.search("gate"), PieceError);
  offline = false;
  const found = await search.search("gate");
  const before = asked.length;
  assert.deepEqual(await search.search("gate"), found);
  assert.equal(asked.length, before);
});
