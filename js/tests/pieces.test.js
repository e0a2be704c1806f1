// Pieces are checked: what is missing, damaged or of another version is an error, and is asked for again.

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { namesIn, PieceError, Pieces, Reader } from "../src/pieces.js";
import { sha256 } from "../src/sha256.js";

const of = (bytes) => createHash("sha256").update(bytes).digest("hex");

test("hashes are SHA-256", () => {
  for (const size of [0, 1, 3, 55, 56, 57, 63, 64, 65, 119, 120, 1000, 100_000]) {
    const bytes = randomBytes(size);
    assert.equal(sha256(bytes), of(bytes));
  }
});

const packed = deflateSync(Buffer.from("ten thousand passages"));
const NAME = of(packed).slice(0, 24);
const answers = (...bodies) => {
  const asked = [];
  const get = async (url, options) => {
    asked.push([url, options.cache]);
    const body = bodies.shift();
    if (body instanceof Error) throw body;
    return body === null ? new Response(null, { status: 404 }) : new Response(body);
  };
  return { pieces: new Pieces("https://a.example/search", get), asked };
};

test("a piece is fetched once and unpacked", async () => {
  const { pieces, asked } = answers(packed);
  const found = await Promise.all([pieces.piece(NAME), pieces.piece(NAME)]);
  assert.equal(new TextDecoder().decode(found[1]), "ten thousand passages");
  assert.deepEqual(asked, [[`https://a.example/search/pieces/${NAME.slice(0, 2)}/${NAME.slice(2)}.bin`, "default"]]);
});

test("a damaged piece of a cache is fetched again from the host", async () => {
  const { pieces, asked } = answers(Buffer.from("damaged"), packed);
  assert.equal((await pieces.piece(NAME)).length, 21);
  assert.deepEqual(asked.map(([, cache]) => cache), ["default", "reload"]);
});

test("a piece that is damaged or missing is an error, and is asked for again later", async () => {
  for (const bodies of [[Buffer.from("x"), Buffer.from("x")], [null], [new TypeError("offline")]]) {
    const { pieces } = answers(...bodies, packed);
    await assert.rejects(pieces.piece(NAME), PieceError);
    assert.equal((await pieces.piece(NAME)).length, 21);
  }
});

test("a manifest must be there, JSON, and of this version", async () => {
  for (const body of [null, "<html>", "null", '{"format": 2}']) await assert.rejects(answers(body).pieces.manifest(), PieceError);
  const { pieces, asked } = answers('{"format": 1}');
  assert.deepEqual(await pieces.manifest(), { format: 1 });
  assert.equal(asked[0][1], "no-cache");
});

test("numbers, arrays and names are read", () => {
  const reader = new Reader(Uint8Array.of(0, 127, 0x80, 1, 0xac, 2, 1, 0, 0, 0, 104, 105));
  assert.deepEqual([reader.number(), reader.number(), reader.number(), reader.number()], [0, 127, 128, 300]);
  assert.deepEqual([...reader.array(Int32Array, 1)], [1]);
  assert.equal(reader.text(2), "hi");
  assert.deepEqual(namesIn(new Uint8Array(24).fill(171)), ["ab".repeat(12), "ab".repeat(12)]);
});
