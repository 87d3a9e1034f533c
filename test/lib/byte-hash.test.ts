// The hash of bytes: it depends on every byte, on the length and on nothing else.

import { HASH_BYTES, writeHash } from "../../src/lib/byte-hash.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";

function hashOf(bytes: Uint8Array): string {
  const target = Buffer.alloc(HASH_BYTES + 2, 0xee);
  writeHash(target, 1, bytes);
  if (target[0] !== 0xee || target.at(-1) !== 0xee)
    throw new Error("the hash wrote outside its place");
  return target.toString("hex", 1, 1 + HASH_BYTES);
}

t.test("equal bytes have the same hash in every release", async (t) => {
  t.same(
    ["", "a", '{"type":1}', '{"type":1,"content":"hello"}'].map((text) =>
      hashOf(Buffer.from(text)),
    ),
    ["27aa43dc8be7aa46", "07d8c30f8a189635", "5427b8f2b1118ed1", "dde235eed91517b3"],
  );
});

t.test("the hash depends on every byte and on the length", async (t) => {
  for (const length of [0, 1, 3, 7, 8, 9, 15, 16, 17, 100, 1000]) {
    const bytes = Buffer.alloc(length, 0x61);
    const hashes = new Set([hashOf(bytes), hashOf(Buffer.concat([bytes, Buffer.alloc(1)]))]);
    for (let at = 0; at < length; at++)
      for (const bit of [1, 2, 128]) {
        const other = Buffer.from(bytes);
        other[at] = 0x61 ^ bit;
        hashes.add(hashOf(other));
      }
    t.equal(hashes.size, 2 + 3 * length, `${length} bytes`);
  }
});

t.test("the hash does not depend on the position of the bytes in a buffer", async (t) => {
  const bytes = Buffer.from('{"type":1,"content":"hello"}');
  for (let offset = 0; offset < 9; offset++) {
    const padded = Buffer.concat([Buffer.alloc(offset, 7), bytes, Buffer.alloc(3, 9)]);
    t.equal(hashOf(padded.subarray(offset, -3)), hashOf(bytes));
    t.equal(hashOf(new Uint8Array(padded).subarray(offset, -3)), hashOf(bytes));
  }
});

t.test("the hashes of similar payloads differ, and nearly all differ in both halves", async (t) => {
  const random = new Random(7);
  const hashes = new Set<string>();
  const halves = [new Set<string>(), new Set<string>()] as const;
  const count = 20_000;
  for (let i = 0; i < count; i++) {
    const hash = hashOf(Buffer.from(`{"type":1,"content":"${"x".repeat(random.below(20))}${i}"}`));
    hashes.add(hash);
    halves[0].add(hash.slice(0, 8));
    halves[1].add(hash.slice(8));
  }
  t.equal(hashes.size, count);
  for (const half of halves) t.ok(half.size >= count - 3, `${half.size} values of one half`);
});
