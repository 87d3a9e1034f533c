// WKProto's bytes against sessions that real servers and SDKs had (goldens/wkproto.json): each
// packet of a client is read by our codec and written again by the test's own client, each packet
// of a server the other way round.

import { readFileSync } from "node:fs";
import { PayloadCipher } from "../../src/protocol/wkproto/crypto.ts";
import { readConnect, readRecvack, readSend } from "../../src/protocol/wkproto/decode.ts";
import {
  EncryptedRecv,
  PONG,
  writeConnack,
  writeDisconnect,
  writeEvent,
  writeSendack,
} from "../../src/protocol/wkproto/encode.ts";
import { type Packet, PacketStream } from "../../src/protocol/wkproto/packets.ts";
import { t } from "../support/suite.ts";
import {
  decodeServerPacket,
  deriveKeys,
  encodeClientPacket,
  type Fields,
  privateKeyOf,
  type WkKeys,
} from "../support/wkproto-packets.ts";
import { frameErrorOf } from "./native-codec.ts";

interface Session {
  readonly name: string;
  readonly version: number;
  /** Absent: the login was refused. */
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
) as { readonly sessions: readonly Session[] };
const MAX_BYTES = 65_536;
const STREAM = 2;

t.test("the sessions are all there", async (t) => {
  t.equal(sessions.length, 20, "sessions");
  t.same([...new Set(sessions.map(({ version }) => version))].sort(), [1, 2, 3, 4, 5], "versions");
});

for (const session of sessions)
  t.test(`the bytes of ${session.name}`, async (t) => {
    const { version, frames, keys } = session;
    if (keys !== undefined) {
      const { clientPrivate, serverKey } = keys;
      const agreed = deriveKeys(
        privateKeyOf(Buffer.from(clientPrivate, "hex")),
        serverKey,
        keys.iv,
      );
      t.equal(agreed.aesKey, keys.aesKey, "the agreed key");
    }
    for (const { dir, packet, flags, hex, fields } of frames) {
      if (dir === "closed") continue;
      const bytes = Buffer.from(hex, "hex");
      if (dir === "c>s") {
        const back = encodeClientPacket({ packet, flags, fields }, version, keys);
        t.equal(back.toString("hex"), hex, `${packet} written by the client`);
        const seen = packetsOf([bytes]);
        t.equal(seen.length, 1, `one ${packet}`);
        t.same(seen[0]?.flags, flags, "flags");
        t.same(read(seen[0], version, keys), fields, `${packet} read`);
      } else {
        const seen = decodeServerPacket(bytes, version, keys);
        t.same(seen, { packet, flags, fields }, `${packet} read by the client`);
        if (!hasOldStream(fields, version)) {
          const back = write(packet, flags, fields, version, keys);
          t.equal(toHex(back), hex, `${packet} written`);
        }
      }
    }
  });

t.test("a packet may be cut anywhere, and share a message", async (t) => {
  for (const { name, version, frames, keys } of sessions) {
    const sent = frames.filter(({ dir }) => dir === "c>s");
    const all = Buffer.concat(sent.map(({ hex }) => Buffer.from(hex, "hex")));
    const whole = packetsOf([all]).map((one) => read(one, version, keys));
    t.equal(whole.length, sent.length, `${name}: all in one message`);
    const single = packetsOf([...all].map((byte) => Buffer.from([byte])));
    t.same(
      single.map((one) => read(one, version, keys)),
      whole,
      `${name}: byte by byte`,
    );
    for (let cut = 1; cut < all.length; cut++) {
      const found = packetsOf([all.subarray(0, cut), all.subarray(cut)]);
      if (found.length !== sent.length || !found.every(isSameAs(packetsOf([all]))))
        t.fail(`${name}: cut at ${cut}`);
    }
  }
});

t.test("a body that is cut short is refused", async (t) => {
  for (const { name, version, frames, keys } of sessions)
    for (const { dir, packet, hex } of frames) {
      if (dir !== "c>s" || packet === "PING") continue;
      const [found] = packetsOf([Buffer.from(hex, "hex")]);
      if (found === undefined) throw new Error("no packet");
      const payload = packet === "SEND" ? payloadBytes(found, version) : 0;
      const cuts = found.body.length - payload;
      for (let cut = 0; cut < cuts; cut++) {
        const short = { ...found, body: found.body.subarray(0, cut) };
        const error = frameErrorOf(() => read(short, version, keys));
        if (error?.fatal !== true) t.fail(`${name}: ${packet} of ${cut} bytes`);
      }
    }
});

/** RECV with fields that only protocol versions 2 to 4 have, and that we never send. */
function hasOldStream(fields: Fields, version: number): boolean {
  return (Number(fields.setting ?? 0) & STREAM) !== 0 && version > 1 && version < 5;
}

function packetsOf(messages: readonly Buffer[]): readonly Packet[] {
  const stream = new PacketStream(MAX_BYTES);
  const found: Packet[] = [];
  for (const message of messages)
    stream.read(message, (packet) => found.push({ ...packet, body: Buffer.from(packet.body) }));
  return found;
}

function isSameAs(others: readonly Packet[]) {
  return ({ type, flags, body }: Packet, at: number): boolean => {
    const other = others[at];
    return type === other?.type && flags === other.flags && body.equals(other.body);
  };
}

function payloadBytes({ body }: Packet, version: number): number {
  return readSend(body, version).payload.length;
}

/** The fields of a client's packet as the goldens have them. */
function read(packet: Packet | undefined, version: number, keys: WkKeys | undefined): unknown {
  switch (packet?.type) {
    case 1: {
      const { clientTimestamp, ...fields } = readConnect(packet.body);
      return { ...fields, clientTimestamp: String(clientTimestamp) };
    }
    case 3: {
      const { expireS, topic, payload, streamNo, ...fields } = readSend(packet.body, version);
      const plain = cipherOf(keys).decrypt(payload);
      t.equal(streamNo, "", "no streamNo");
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

/** A server's packet with these fields. */
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
