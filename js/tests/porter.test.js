// Stems are those of SQLite, of which tests/site/test_export.py writes some to the folder that SITE names.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { stem } from "../src/porter.js";

const folder = process.env.SITE;

test("stems are those of SQLite", { skip: folder ? false : "SITE names no folder; run pytest tests/site" }, () => {
  const [words, stems] = JSON.parse(readFileSync(join(folder, "stems.json"), "utf-8"));
  assert.ok(words.length > 50_000);
  assert.deepEqual(words.map(stem), stems);
});
