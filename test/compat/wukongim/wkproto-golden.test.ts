// WKProto's bytes, compared with captured sessions of real servers and SDKs (goldens/wkproto.json).
// Each packet of a client is read by our codec and written again by the test's client. Each packet
// of a server is read by the test's client and written again by our codec.

import { readFileSync } from "node:fs";
import { PayloadCipher } from "../../../src/compat/wukongim/wkproto/crypto.ts";
import { readConnect, readRecvack, readSend } from "../../../src/compat/wukongim/wkproto/decode.ts";
import {
  EncryptedRecv,
  PONG,
  writeConnack,
  writeDisconnect,
  writeEvent,
  writeSendack,
} from "../../../src/compat/wukongim/wkproto/encode.ts";
import {
  type Packet,
  PacketSplitter,
  packetOf,
} from "../../../src/compat/wukongim/wkproto/packets.ts";
import { t } from "../../support/suite.ts";
import {
  decodeServerPacket,
  deriveKeys,
  encodeClientPacket,
  type Fields,
  privateKeyOf,
  type WkKeys,
} from "../../support/wkproto-packets.ts";
import { frameErrorOf } from "../../wire/native-codec.ts";

interface WkprotoSession {
  readonly name: string;
  readonly version: number;
  /** Keys of the session. Absent if the login was refused. */
  readonly keys?: WkKeys & {
    readonly clientPrivate: string;
    readonly serverKey: string;
  };
  readonly frames: readonly {
    readonly dir: "c>s" | "s>c" | "closed";
    readonly packet: string;
    readonly flags: number;
    readonly hex: string;
    readonly fields: Fields;
  }[];
}

const { sessions } = JSON.parse(
  readFileSync(new URL("goldens/wkproto.json", import.meta.url), "utf8"),
) as { readonly sessions: readonly WkprotoSession[] };
const MAX_BYTES = 65_536;
const STREAM = 2;

t.test("the captured sessions cover all five protocol versions", async (t) => {
  t.equal(sessions.length, 20, "20 sessions were captured");
  t.same(
    [...new Set(sessions.map(({ version }) => version))].sort(),
    [1, 2, 3, 4, 5],
    "sessions of all five versions were captured",
  );
});

for (const session of sessions)
  t.test(
    `the packets captured in session ${session.name} decode to the captured fields and encode to the captured bytes`,
    async (t) => {
      const { version, frames, keys } = session;
      if (keys !== undefined) {
        const { clientPrivate, serverKey } = keys;
        const derived = deriveKeys(
          privateKeyOf(Buffer.from(clientPrivate, "hex")),
          serverKey,
          keys.iv,
        );
        t.equal(derived.aesKey, keys.aesKey, "both sides derive the same key");
      }
      for (const { dir, packet, flags, hex, fields } of frames) {
        if (dir === "closed") continue;
        const bytes = Buffer.from(hex, "hex");
        if (dir === "c>s") {
          const encoded = encodeClientPacket({ packet, flags, fields }, version, keys);
          t.equal(encoded.toString("hex"), hex, `the client writes the same ${packet}`);
          const packets = packetsOf([bytes]);
          t.equal(packets.length, 1, `the bytes hold one ${packet}`);
          t.same(packets[0]?.flags, flags, "the packet has its flags");
          t.same(
            read(packets[0], version, keys),
            fields,
            `the server reads the fields of ${packet}`,
          );
        } else {
          const decoded = decodeServerPacket(bytes, version, keys);
          t.same(decoded, { packet, flags, fields }, `the client reads the fields of ${packet}`);
          if (!hasOldStream(fields, version)) {
            const encoded = write(packet, flags, fields, version, keys);
            t.equal(toHex(encoded), hex, `the server writes the same ${packet}`);
          }
        }
      }
    },
  );

t.test("packets may be split at any byte and may share a WebSocket message", async (t) => {
  for (const { name, version, frames, keys } of sessions) {
    const sent = frames.filter(({ dir }) => dir === "c>s");
    const all = Buffer.concat(sent.map(({ hex }) => Buffer.from(hex, "hex")));
    const expected = packetsOf([all]).map((packet) => read(packet, version, keys));
    t.equal(expected.length, sent.length, `the packets of ${name} may share one message`);
    const single = packetsOf([...all].map((byte) => Buffer.from([byte])));
    t.same(
      single.map((packet) => read(packet, version, keys)),
      expected,
      `the packets of ${name} may arrive byte by byte`,
    );
    for (let cut = 1; cut < all.length; cut++) {
      const packets = packetsOf([all.subarray(0, cut), all.subarray(cut)]);
      if (packets.length !== sent.length || !packets.every(isSameAs(packetsOf([all]))))
        t.fail(`the packets of ${name} change when split at byte ${cut}`);
    }
  }
});

t.test("a packet whose body is too short is refused", async (t) => {
  for (const { name, version, frames, keys } of sessions)
    for (const { dir, packet, hex } of frames) {
      if (dir !== "c>s" || packet === "PING") continue;
      const [whole] = packetsOf([Buffer.from(hex, "hex")]);
      if (whole === undefined) throw new Error(`the session ${name} has no packet in ${hex}`);
      const payload = packet === "SEND" ? payloadBytes(whole, version) : 0;
      const cuts = whole.body.length - payload;
      for (let cut = 0; cut < cuts; cut++) {
        const short = { ...whole, body: whole.body.subarray(0, cut) };
        const error = frameErrorOf(() => read(short, version, keys));
        if (error?.fatal !== true) t.fail(`${packet} of ${name} with ${cut} bytes is not refused`);
      }
    }
});

/**
 * Returns true for a RECV with fields that exist only in protocol versions 2 to 4 and that the
 * broker never sends.
 */
function hasOldStream(fields: Fields, version: number): boolean {
  return (Number(fields.setting ?? 0) & STREAM) !== 0 && version > 1 && version < 5;
}

/** Returns the packets in a connection's messages. */
function packetsOf(messages: readonly Buffer[]): readonly Packet[] {
  const splitter = new PacketSplitter(MAX_BYTES);
  const packets: Packet[] = [];
  for (const message of messages)
    for (const bytes of splitter.split(message)) packets.push(packetOf(Buffer.from(bytes)));
  return packets;
}

/** Returns a function that compares a packet with the packet at the same index. */
function isSameAs(expected: readonly Packet[]) {
  return ({ type, flags, body }: Packet, index: number): boolean => {
    const counterpart = expected[index];
    return (
      type === counterpart?.type && flags === counterpart.flags && body.equals(counterpart.body)
    );
  };
}

function payloadBytes({ body }: Packet, version: number): number {
  return readSend(body, version).payload.length;
}

/** Returns the fields of a client's packet in the form of the goldens. */
function read(packet: Packet | undefined, version: number, keys: WkKeys | undefined): unknown {
  switch (packet?.type) {
    case 1: {
      const { clientTimestamp, ...fields } = readConnect(packet.body);
      return { ...fields, clientTimestamp: String(clientTimestamp) };
    }
    case 3: {
      const { expireS, topic, payload, streamNo, ...fields } = readSend(packet.body, version);
      const plain = cipherOf(keys).decrypt(payload);
      t.equal(streamNo, "", "a SEND of these sessions has no streamNo");
      const { msgKey, ...named } = fields;
      return {
        ...named,
        ...(version >= 3 && { expire: expireS }),
        msgKey,
        ...(topic && { topic }),
        ...(plain ? { plain: String(plain) } : { payload: String(payload) }),
      };
    }
    case 6: {
      const { messageId, messageSeq } = readRecvack(packet.body);
      return { messageId: String(messageId), messageSeq };
    }
    default:
      return {};
  }
}

/** Returns a server's packet with these fields. */
function write(
  packet: string,
  flags: number,
  fields: Fields,
  version: number,
  keys: WkKeys | undefined,
): Uint8Array {
  const number = (name: string) => Number(fields[name] ?? 0);
  const big = (name: string) => BigInt(fields[name] ?? 0);
  const text = (name: string) => String(fields[name] ?? "");
  switch (packet) {
    case "CONNACK":
      return writeConnack({
        version,
        timeDiff: big("timeDiff"),
        reasonCode: number("reasonCode"),
        serverKey: text("serverKey"),
        salt: text("salt"),
        nodeId: big("nodeId"),
      });
    case "SENDACK":
      return writeSendack({
        flags,
        messageId: big("messageId"),
        clientSeq: number("clientSeq"),
        messageSeq: number("messageSeq"),
        reasonCode: number("reasonCode"),
      });
    case "RECV":
      return new EncryptedRecv(
        {
          flags,
          setting: number("setting"),
          fromUid: text("fromUid"),
          channelId: text("channelId"),
          channelType: number("channelType"),
          expireS: number("expire"),
          clientMsgNo: text("clientMsgNo"),
          messageId: big("messageId"),
          messageSeq: number("messageSeq"),
          timestampS: number("timestamp"),
          topic: text("topic"),
          payload: Buffer.from(text("plain")),
        },
        version,
      ).encryptFor(cipherOf(keys));
    case "DISCONNECT":
      return writeDisconnect(number("reasonCode"), text("reason"));
    case "EVENT":
      return writeEvent({
        id: text("id"),
        type: text("type"),
        timestampMs: big("timestamp"),
        data: text("data"),
      });
    default:
      return PONG;
  }
}

function cipherOf(keys: WkKeys | undefined): PayloadCipher {
  if (keys === undefined) throw new Error("the session has no keys");
  return new PayloadCipher(keys.aesKey, keys.iv);
}

function toHex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString("hex");
}
