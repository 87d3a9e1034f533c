// The native protocol with random values and random bytes. The tests are seeded, and a failure
// names the seed that repeats it.

import { isDeepStrictEqual } from "node:util";
import { decodeServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { createEncoder } from "../../src/protocol/native/encode.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { decodeClientFrame, frameErrorOf, fromHex } from "./native-codec.ts";
import {
  randomOperation,
  randomPush,
  randomReply,
  RANDOM_READER_UID as UID,
} from "./native-random.ts";
import { OPERATIONS, PUSHES, REPLIES } from "./native-samples.ts";

const ROUNDS = 3000;
const encoder = createEncoder();

t.test("random operations are unchanged after encoding and decoding", async (t) => {
  const failedSeed = seeds(ROUNDS).find((seed) => {
    const operation = randomOperation(new Random(seed));
    const decoded = decodeClientFrame(encodeOperation(operation));
    return !isDeepStrictEqual(decoded, operation);
  });
  t.equal(failedSeed, undefined, "no seed changes a value");
});

t.test("random replies and pushes are unchanged after encoding and decoding", async (t) => {
  const failedSeed = seeds(ROUNDS).find((seed) => {
    const random = new Random(seed);
    const reply = randomReply(random);
    const push = randomPush(random);
    const decodedReply = decodeServerFrame(encoder.reply(reply), UID);
    const decodedPush = decodeServerFrame(encoder.push(push), UID);
    return !isDeepStrictEqual([decodedReply, decodedPush], [reply, push]);
  });
  t.equal(failedSeed, undefined, "no seed changes a value");
});

t.test("decoding random bytes causes no errors except frame errors", async (t) => {
  let refused = 0;
  for (const seed of seeds(20_000)) {
    const random = new Random(seed);
    const bytes = random.bytes(random.below(64));
    // Half of the frames begin correctly, because nearly all others fail at the first byte.
    if (seed % 2 === 0 && bytes.length > 2)
      bytes.set([0x90 | random.below(16), 1 + random.below(14)]);
    if (frameErrorOf(() => decodeClientFrame(bytes))) refused++;
    frameErrorOf(() => decodeServerFrame(bytes, UID));
  }
  t.ok(refused > 15_000, `${refused} of 20000 frames were refused`);
});

t.test("decoding damaged frames causes no errors except frame errors", async (t) => {
  const frames = [...OPERATIONS, ...REPLIES, ...PUSHES].map(({ hex }) => hex);
  let refused = 0;
  for (const seed of seeds(20_000)) {
    const random = new Random(seed);
    const bytes = fromHex(random.pick(frames));
    for (let i = 0; i <= random.below(3); i++)
      bytes[random.below(bytes.length)] = random.below(256);
    if (frameErrorOf(() => decodeClientFrame(bytes))) refused++;
    frameErrorOf(() => decodeServerFrame(bytes, UID));
  }
  t.ok(refused > 5000 && refused < 20_000, `${refused} of 20000 frames were refused`);
});

function seeds(count: number): readonly number[] {
  return Array.from({ length: count }, (_, i) => i + 1);
}
