// Embed texts with an exported model: node embed.mjs DIR TEXT..., a JSON array a line.
// DIR is what `ctx-embed export onnx default -o DIR` wrote. Needs: npm install onnxruntime-web @huggingface/tokenizers
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web";

const [folder, ...texts] = process.argv.slice(2);
const json = JSON.parse(readFileSync(join(folder, "tokenizer.json"), "utf8"));
const tokenizer = new Tokenizer(json, {});
const pairs = JSON.parse(readFileSync(join(folder, "phrases.json"), "utf8"));
const entries = Object.keys(json.model.vocab).length;

// A text as the model reads it: characters that mean the same are written the same way.
const characters = JSON.parse(readFileSync(join(folder, "characters.json"), "utf8"));
const context = new RegExp(characters.context.replaceAll("[^\\W_]", "[\\p{L}\\p{N}]"), "gu");
const inContext = (found, kept, space, inside) => {
  if (kept) return found;
  if (space) return `${found[0]} `;
  return inside ? "" : found.replace(/[^\xad]/gu, "").replaceAll("\xad", "-");
};
const normalised = (text) => {
  const read = Array.from(text, (character) => characters.read[character] ?? character).join("");
  return read.replace(context, inContext).normalize("NFC");
};

// Phrases of single entries are merged in one pass from left to right, then phrases of these, and so on.
const level = new Array(entries).fill(0);
const passes = [];
pairs.forEach(([first, second], p) => {
  level.push(1 + Math.max(level[first], level[second]));
  while (passes.length < level[entries + p]) passes.push(new Map());
  passes[level[entries + p] - 1].set(`${first} ${second}`, entries + p);
});

function tokenIds(text) {
  let ids = tokenizer.encode(normalised(text), { add_special_tokens: false }).ids;
  for (const phrases of passes) {
    const merged = [];
    for (let place = 0; place < ids.length; place++) {
      const phrase = phrases.get(`${ids[place]} ${ids[place + 1]}`);
      merged.push(phrase ?? ids[place]);
      if (phrase !== undefined) place++;
    }
    ids = merged;
  }
  return ids;
}

const ids = texts.map(tokenIds);
const offsets = [];
let begin = 0;
for (const ofText of ids) {
  offsets.push(begin);
  begin += ofText.length;
}
const tensor = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [values.length]);
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(join(folder, "model.onnx"))));
const { embeddings } = await session.run({ input_ids: tensor(ids.flat()), offsets: tensor(offsets) });
const [, m] = embeddings.dims;
texts.forEach((_, row) => console.log(JSON.stringify([...embeddings.data.slice(row * m, (row + 1) * m)])));
