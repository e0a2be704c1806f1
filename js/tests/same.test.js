// Python and JavaScript read texts alike. tests/site/test_module.py writes the folder that SITE names, and runs this.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Encoder } from "../src/encoder.js";
import { Pieces } from "../src/pieces.js";
import { files } from "./files.js";

const folder = process.env.SITE;
const skip = folder ? false : "SITE names no folder; run pytest tests/site";
const read = (name) => JSON.parse(readFileSync(join(folder, name), "utf-8"));

const encoder = async () => new Encoder(new Pieces(folder, files), (await new Pieces(folder, files).manifest()).model);

test("ids and vectors are those of Python", { skip }, async () => {
  const { texts, ids, vectors } = read("texts.json");
  assert.ok(texts.length > 1000);
  const model = await encoder();
  let worst = 0;
  for (const [place, text] of texts.entries()) {
    assert.deepEqual(await model.ids(text), ids[place], JSON.stringify(text.slice(0, 200)));
    const vector = await model.embed(text);
    vectors[place].forEach((value, feature) => (worst = Math.max(worst, Math.abs(value - vector[feature]))));
  }
  assert.ok(worst < 2e-5, `vectors differ by ${worst}`);
});

test("a text has one vector, whatever was embedded before", { skip }, async () => {
  const [first, second] = [await encoder(), await encoder()];
  const { texts } = read("texts.json");
  for (const text of texts.slice(-40)) await first.embed(text);
  assert.deepEqual(await first.embed("a quiet place to read"), await second.embed("a quiet place to read"));
});

test("words of full text are those of Python", { skip }, async () => {
  const { texts, normalised } = read("texts.json");
  const model = await encoder();
  for (const [place, text] of texts.entries()) {
    const tables = await model.tables(text, "\u00e9");
    assert.equal(tables.normalised(text), normalised[place], JSON.stringify(text.slice(0, 200)));
  }
});
