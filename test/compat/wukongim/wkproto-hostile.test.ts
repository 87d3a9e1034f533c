// WKProto with bytes that no honest client sends: the codec returns requests or frame errors, and
// uses no more memory than the received bytes need. The tests are seeded, and a failure names the
// seed that repeats it.

import { readFileSync } from "node:fs";
import { createWkproto } from "../../../src/compat/wukongim/wkproto/wkproto.ts";
import { type Codec, FrameError, type Operation } from "../../../src/protocol/protocol.ts";
import { Random } from "../../support/random.ts";
import { t } from "../../support/suite.ts";
import {
  deriveKeys,
  encodeClientPacket,
  newKeys,
  type WkKeys,
} from "../../support/wkproto-packets.ts";

const LIMITS = {
  maxIdLength: 128,
  maxPayloadBytes: 4096,
  maxPacketBytes: 131_072,
};
const wkproto = createWkproto(LIMITS, { encryption: true });
const clientKeys = newKeys();

const connect = (version: number) =>
  encodeClientPacket(
    {
      ...{ packet: "CONNECT", flags: 0 },
      fields: {
        ...{ version, deviceFlag: 1, deviceId: "d", uid: "u", token: "t" },
        ...{ clientTimestamp: 0, clientKey: clientKeys.clientKey },
      },
    },
    version,
  );

/** Returns the codec of a client that is logged in, and the client's keys. */
function connected(version = 5): { codec: Codec; keys: WkKeys } {
  const codec = wkproto.open();
  codec.decodeConnect(connect(version), false)?.finishDecoding();
  const frame = codec.encodeReply({
    ...{ kind: "connack", ref: 1, version, sessionId: "s", nodeId: "n" },
    ...{ serverTimeMs: 0, resume: [], newestId: 0 },
    limits: {
      ...{ maxFrameBytes: 0, maxPayloadBytes: 0 },
      ...{ idleTimeoutS: 0, maxFramesPerSecond: 0 },
    },
  });
  const text = Buffer.from(frame as Uint8Array).toString("latin1"); // a reply is one frame
  const [, serverKey = "", salt = ""] =
    /,([A-Za-z0-9+/]{43}=)..([0-9A-Za-z]{16})/s.exec(text) ?? [];
  return { codec, keys: deriveKeys(clientKeys.privateKey, serverKey, salt) };
}

const isFatal = (request: Operation | FrameError | undefined) =>
  request instanceof FrameError && request.fatal;

const seeds = (count: number) => Array.from({ length: count }, (_, i) => i + 1);

let shared = connected();

t.test("random bytes cause only frame errors", async (t) => {
  let fatal = 0;
  for (const seed of seeds(3000)) {
    const random = new Random(seed);
    const codec = seed % 2 === 0 ? wkproto.open() : shared.codec;
    const bytes = random.bytes(1 + random.below(64));
    const requests = [...codec.decode(bytes, false)];
    if (requests.some(isFatal)) fatal++;
    if (seed % 2 !== 0 && requests.some(isFatal)) shared = connected();
  }
  t.ok(fatal > 500, `${fatal} of 3000 messages end the connection`);
});

t.test("damaged packets cause only frame errors", async (t) => {
  const { sessions } = JSON.parse(
    readFileSync(new URL("goldens/wkproto.json", import.meta.url), "utf8"),
  ) as {
    readonly sessions: readonly {
      readonly frames: readonly {
        readonly dir: string;
        readonly hex: string;
      }[];
    }[];
  };
  const packets = sessions.flatMap(({ frames }) =>
    frames.flatMap(({ dir, hex }) => (dir === "c>s" ? [Buffer.from(hex, "hex")] : [])),
  );
  let refused = 0;
  for (const seed of seeds(3000)) {
    const random = new Random(seed);
    const packet = packets[random.below(packets.length)] ?? Buffer.alloc(1);
    const bytes = Buffer.from(packet);
    const damagedByte = random.below(bytes.length);
    bytes[damagedByte] = (bytes[damagedByte] ?? 0) ^ (1 + random.below(255));
    const cut = random.below(bytes.length + 1);
    const requests = [bytes.subarray(0, cut), bytes.subarray(cut)].flatMap((part) => [
      ...shared.codec.decode(part, false),
    ]);
    if (requests.some((request) => request instanceof FrameError)) refused++;
    shared = requests.length === 0 || requests.some(isFatal) ? connected() : shared;
  }
  t.ok(refused > 300, `${refused} of 3000 packets are refused`);
});

t.test("memory is allocated for received bytes and not for an announced length", async (t) => {
  const codecs = seeds(5000).map(() => wkproto.open());
  const before = process.memoryUsage().arrayBuffers;
  // announces 32,640 bytes
  for (const codec of codecs) t.same([...codec.decode(Buffer.from("1080ff01", "hex"), false)], []);
  const grown = process.memoryUsage().arrayBuffers - before;
  t.ok(grown < 5000 * 1024, `5000 connections use ${grown} bytes`);
  t.equal(codecs.length, 5000, "all connections are still referenced");
});

t.test("a packet over the limit is refused as soon as its length is known", async (t) => {
  for (const [hex, name] of [
    ["3081800830", "a SEND"],
    ["10818002", "a CONNECT"],
  ] as const) {
    const codec = hex.startsWith("1") ? wkproto.open() : connected().codec;
    const [error] = codec.decode(Buffer.from(hex, "hex"), false);
    t.match(error, { code: "too_large", fatal: true }, name);
  }
});

t.test(
  "SENDs that are refused without being read do not affect the packets after them",
  async (t) => {
    const { codec, keys } = connected();
    const send = (clientSeq: number) =>
      encodeClientPacket(
        {
          ...{ packet: "SEND", flags: 2 },
          fields: {
            ...{ clientSeq, clientMsgNo: `c-${clientSeq}` },
            ...{ channelId: "bob", channelType: 1, plain: '{"type":1}' },
          },
        },
        5,
        keys,
      );
    const all = Buffer.concat([send(1), Buffer.from([0x70]), send(2), send(3)]);
    const cut = all.length - 20;
    const refusals = [...codec.decode(all.subarray(0, cut), false, () => false)];
    const acks = refusals.flatMap(({ ref }) =>
      ref === 0
        ? []
        : Buffer.from(
            codec.encodeReply({
              ...{ kind: "error", ref, code: "rate_limited" },
              ...{ message: "", retryAfterMs: 1 },
            }) as Uint8Array, // a reply is one frame
          ).toString("hex"),
    );
    t.same(
      acks,
      [1, 2].map((seq) => `421100000000000000000000000${seq}0000000016`),
      "a SENDACK with reason 22 for each SEND",
    );
    const [third] = codec.decode(all.subarray(cut), false);
    t.match(third, { kind: "send", clientMsgNo: "c-3" }, "the SEND after them is read");
  },
);

t.test(
  "a WebSocket message that contains too many ignored packets, such as repeated PINGs, is refused",
  async (t) => {
    const sub = Buffer.from("a00100", "hex"); // a SUB packet with a body of one byte
    for (const bytes of [
      Buffer.alloc(100_000, 0x70),
      Buffer.concat(Array.from({ length: 30_000 }, () => sub)),
    ]) {
      for (const isAdmitted of [true, false])
        t.match([...connected().codec.decode(bytes, false, () => isAdmitted)].at(-1), {
          ...{ code: "malformed_frame", fatal: true },
        });
    }
  },
);

t.test("several PINGs in one message are decoded as one PING", async (t) => {
  const { codec } = connected();
  t.same([...codec.decode(Buffer.alloc(100, 0x70), false)], [{ kind: "ping", ref: 0 }]);
});
