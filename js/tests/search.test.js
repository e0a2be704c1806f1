// A search ranks as the library does. tests/site/test_export.py writes the folder that SITE names, and runs this.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { PieceError, Search } from "../src/search.js";
import { asked, files } from "./files.js";

const folder = process.env.SITE;
const skip = folder ? false : "SITE names no folder; run pytest tests/site";
const near = (one, other, most) => one === other || Math.abs(one - other) <= most;

test("with all clusters, hits, their order and their scores are those of Python", { skip }, async () => {
  const search = new Search(folder, { get: files, probes: Infinity });
  for (const [query, expected] of JSON.parse(readFileSync(join(folder, "queries.json"), "utf-8"))) {
    const { hits } = await search.search(query, 20);
    const said = JSON.stringify(query);
    assert.deepEqual(hits.map(({ page, text }) => [page, text]), expected.map(([source, text]) => [source, text]), said);
    hits.forEach(({ score, fused, relevance }, place) => {
      const [, , cosine, mean, relevant] = expected[place];
      assert.ok(near(score, cosine, 2e-5) && near(fused, mean, 5e-5) && near(relevance, relevant, 1e-3), `${said} ${place}: ${[score, cosine, fused, mean, relevance, relevant]}`);
    });
  }
});

test("with some clusters, the best hits are mostly the same, and little is read", { skip }, async () => {
  const queries = JSON.parse(readFileSync(join(folder, "queries.json"), "utf-8")).filter(([, expected]) => expected.length >= 10);
  const search = new Search(folder, { get: files });
  let same = 0;
  for (const [query, expected] of queries) {
    const best = expected.slice(0, 10).map(([, text]) => text);
    same += (await search.search(query)).hits.filter(({ text }) => best.includes(text)).length / 10;
  }
  assert.ok(queries.length === 0 || same / queries.length > 0.75, `${same / queries.length}`);
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
