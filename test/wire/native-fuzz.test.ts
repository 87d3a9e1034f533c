// The native protocol under random values and random bytes. Seeded: a failure names the seed that repeats it.

import { isDeepStrictEqual } from "node:util";
import t from "tap";
import { CLOSE_REASONS, ERRORS } from "../../src/broker/errors.ts";
import { type ChannelRef, channelKey } from "../../src/broker/model.ts";
import { decodeServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { createEncoder } from "../../src/protocol/native/encode.ts";
import type { Operation, Push, Reply } from "../../src/protocol/protocol.ts";
import { Random } from "../support/random.ts";
import {
  decodeClientFrame,
  frameErrorOf,
  fromHex,
  LIMITS,
} from "./native-codec.ts";
import { OPERATIONS, PUSHES, REPLIES } from "./native-samples.ts";

const ROUNDS = 3000;
const UID = "reader";
const encoder = createEncoder();

t.test("random operations survive the wire", async (t) => {
  const lost = seeds(ROUNDS).find((seed) => {
    const operation = randomOperation(new Random(seed));
    const back = decodeClientFrame(encodeOperation(operation));
    return !isDeepStrictEqual(back, operation);
  });
  t.equal(lost, undefined, "the seed of what came back different");
});

t.test("random replies and pushes survive the wire", async (t) => {
  const lost = seeds(ROUNDS).find((seed) => {
    const random = new Random(seed);
    const reply = randomReply(random);
    const push = randomPush(random);
    const replied = decodeServerFrame(encoder.reply(reply), UID);
    const pushed = decodeServerFrame(encoder.push(push), UID);
    return !isDeepStrictEqual([replied, pushed], [reply, push]);
  });
  t.equal(lost, undefined, "the seed of what came back different");
});

t.test("random bytes cause frame errors and nothing else", async (t) => {
  let refused = 0;
  for (const seed of seeds(20_000)) {
    const random = new Random(seed);
    const bytes = random.bytes(random.below(64));
    // Half of them begin as a frame would, else nearly all fail at the first byte.
    if (seed % 2 === 0 && bytes.length > 2)
      bytes.set([0x90 | random.below(16), 1 + random.below(8)]);
    if (frameErrorOf(() => decodeClientFrame(bytes))) refused++;
    frameErrorOf(() => decodeServerFrame(bytes, UID));
  }
  t.ok(refused > 15_000, `${refused} were refused`);
});

t.test("damaged frames cause frame errors and nothing else", async (t) => {
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
  t.ok(refused > 5000 && refused < 20_000, `${refused} were refused`);
});

function seeds(count: number): readonly number[] {
  return Array.from({ length: count }, (_, i) => i + 1);
}

function randomOperation(r: Random): Operation {
  const ref = r.uint(32);
  const channel = randomChannel(r);
  const anOperation: readonly (() => Operation)[] = [
    () => ({
      kind: "connect",
      ref,
      version: 1,
      uid: r.id(),
      token: r.text(200),
      flag: r.pick([0, 1, 2]),
      deviceId: r.maybe(() => r.id()) ?? "",
      level: r.pick([undefined, 0, 1]),
      resume: r.list(LIMITS.maxResumePoints, () => ({
        channel: randomChannel(r),
        lastSeq: r.uint(53),
      })),
    }),
    () => ({
      kind: "send",
      ref,
      channel,
      clientMsgNo: r.text(LIMITS.maxIdLength),
      header: { ...randomHeader(r), syncOnce: r.flip() },
      expireS: r.uint(32),
      streamNo: r.maybe(() => `s${r.text(LIMITS.maxIdLength - 1)}`),
      tagKey: r.maybe(() => `t${r.text(LIMITS.maxIdLength - 1)}`),
      payload: r.bytes(r.below(LIMITS.maxPayloadBytes)),
    }),
    () => ({
      kind: "recvack",
      ref,
      channel,
      messageSeq: r.uint(53),
      messageId: r.uint(53),
    }),
    () => ({
      kind: "history",
      ref,
      channel,
      fromSeq: r.uint(53),
      toSeq: r.uint(53),
      limit: 1 + r.uint(31),
      reverse: r.flip(),
    }),
    () => ({
      kind: "presence",
      ref,
      uids: r.list(LIMITS.maxPresenceUids, () => r.id()),
    }),
    () => ({ kind: "ping", ref }),
    () => ({ kind: "disconnect", ref }),
  ];
  return r.pick(anOperation)();
}

function randomReply(r: Random): Reply {
  const ref = r.uint(32);
  const aReply: readonly (() => Reply)[] = [
    () => ({
      kind: "connack",
      ref,
      version: r.uint(53),
      sessionId: r.text(40),
      nodeId: r.text(40),
      serverTimeMs: r.uint(53),
      limits: {
        maxFrameBytes: r.uint(53),
        maxPayloadBytes: r.uint(53),
        idleTimeoutS: r.uint(53),
        maxFramesPerSecond: r.uint(53),
      },
      resume: r.list(300, () => ({
        channel: randomChannel(r),
        status: r.pick(["ok", "denied"]),
        headSeq: r.uint(53),
      })),
    }),
    () => ({
      kind: "sendack",
      ref,
      messageId: r.uint(53),
      messageSeq: r.uint(53),
      clientMsgNo: r.text(300),
    }),
    () => ({
      kind: "history",
      ref,
      headSeq: r.uint(53),
      more: r.flip(),
      ...randomRun(r),
    }),
    () => ({
      kind: "presence",
      ref,
      presence: r.list(300, () => ({
        uid: r.id(),
        online: r.flip(),
        flag: r.pick([0, 1, 2]),
      })),
    }),
    () => ({ kind: "pong", ref, serverTimeMs: r.uint(53) }),
    () => ({
      kind: "error",
      ref,
      code: r.pick(keysOf(ERRORS)),
      message: `m${r.text(300)}`,
      retryAfterMs: r.uint(53),
    }),
  ];
  return r.pick(aReply)();
}

function randomPush(r: Random): Push {
  const aPush: readonly (() => Push)[] = [
    () => {
      const channel = randomChannel(r);
      return { kind: "message", channel, message: randomMessage(r, channel) };
    },
    () => ({
      kind: "messages",
      afterSeq: r.uint(53),
      throughSeq: r.uint(53),
      ...randomRun(r),
    }),
    () => ({ kind: "disconnect", reason: r.pick(keysOf(CLOSE_REASONS)) }),
  ];
  return r.pick(aPush)();
}

function randomRun(r: Random) {
  const channel = randomChannel(r);
  return { channel, messages: r.list(20, () => randomMessage(r, channel)) };
}

/** A message as the reader sees it in `channel`: someone else's, or its own from another device. */
function randomMessage(r: Random, channel: ChannelRef) {
  const isOwn = r.flip();
  const peer = channel.type === 1 ? channel.id : r.id();
  return {
    messageId: r.uint(53),
    messageSeq: r.uint(53),
    key: channelKey(channel, UID),
    channel:
      isOwn || channel.type === 2 ? channel : ({ type: 1, id: UID } as const),
    fromUid: isOwn ? UID : peer,
    clientMsgNo: r.text(200),
    timestampMs: r.uint(53),
    header: randomHeader(r),
    expireS: r.uint(53),
    streamNo: r.maybe(() => r.text(100)),
    tagKey: r.maybe(() => r.text(100)),
    payload: r.bytes(r.below(700)),
  };
}

function randomHeader(r: Random) {
  return { noPersist: r.flip(), redDot: r.flip() };
}

function randomChannel(r: Random): ChannelRef {
  return { type: r.pick([1, 2]), id: r.id() };
}

function keysOf<K extends string>(table: Readonly<Record<K, unknown>>): K[] {
  return Object.keys(table) as K[];
}
