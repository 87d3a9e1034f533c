// Checks docs/compat/wkproto.md: client and server read its sample session, and its reason codes
// are those in the code. WuKongIM's SDK made the packets of the session.

import { readFileSync } from "node:fs";
import { ERRORS, type ErrorCode } from "../../../src/broker/errors.ts";
import {
  KICKED_REASON,
  reasonOf,
  SUCCESS_REASON,
} from "../../../src/compat/wukongim/reason-codes.ts";
import { PayloadCipher } from "../../../src/compat/wukongim/wkproto/crypto.ts";
import { readConnect, readRecvack, readSend } from "../../../src/compat/wukongim/wkproto/decode.ts";
import { EncryptedRecv } from "../../../src/compat/wukongim/wkproto/encode.ts";
import { PacketSplitter, packetOf } from "../../../src/compat/wukongim/wkproto/packets.ts";
import { t } from "../../support/suite.ts";
import { decodeServerPacket, msgKeyOf } from "../../support/wkproto-packets.ts";

const page = readFileSync(new URL("../../../docs/compat/wkproto.md", import.meta.url), "utf8");
const KEYS = { aesKey: "ac634f4a22c884a6", iv: "AbCdEf0123456789" };
const VERSION = 5;

const [, session = ""] = /```wkproto\n([^`]+)```/.exec(page) ?? [];
const lines = session.trim().split("\n");
const packets = lines.map((line) => {
  const [arrow, name = "", ...hex] = line.split(" ");
  const bytes = Buffer.from(hex.join(""), "hex");
  return { isClient: arrow === "→", name, bytes };
});

/** Fields of each packet that are compared. */
const EXPECTED: Readonly<Record<string, object>> = {
  CONNECT: {
    ...{ version: 5, deviceFlag: 1, deviceId: "dev-1W", uid: "u1" },
    ...{ token: "tk1", clientTimestamp: 1_700_000_000_123n },
    clientKey: "RhMkgWtYpYXTkHdlfoPHc9K+pJ6/p1ij/4eLWU7vllM=",
  },
  CONNACK: {
    ...{ serverVersion: 5, timeDiff: "7", reasonCode: 1, nodeId: "1001" },
    serverKey: "B6N8vBQgk8i3VdwbEOhstCY3StFqqFPtC9/AsrhtHHw=",
    salt: KEYS.iv,
  },
  SEND: {
    ...{ setting: 0, clientSeq: 1, clientMsgNo: "cm-0001", topic: "" },
    ...{ channelId: "u2", channelType: 1, expireS: 0 },
    msgKey: "36560432421c0813daeaf7bdff89aebe",
  },
  SENDACK: {
    ...{ messageId: "1234567890123456789", clientSeq: 1 },
    ...{ messageSeq: 42, reasonCode: 1 },
  },
  RECV: {
    ...{ fromUid: "u2", channelId: "u2", channelType: 1, expire: 0 },
    ...{ clientMsgNo: "cm-0002", messageId: "1234567890123456790" },
    ...{ messageSeq: 43, timestamp: 1_700_000_001 },
    plain: '{"content":"yo","type":1}',
  },
  RECVACK: { messageId: 1234567890123456790n, messageSeq: 43 },
  PING: {},
  PONG: {},
  EVENT: {
    ...{ id: "ev-1", type: "___TextMessageContent" },
    ...{ timestamp: "1700000002000", data: '{"delta":"he"}' },
  },
  DISCONNECT: { reasonCode: 12, reason: "login in other device" },
};

t.test("the sample session in docs/compat/wkproto.md has a packet of each type", async (t) => {
  t.same(
    packets.map(({ name }) => name),
    Object.keys(EXPECTED),
  );
});

t.test(
  "every packet of the sample session in docs/compat/wkproto.md has the expected fields",
  async (t) => {
    for (const { isClient, name, bytes } of packets) {
      const fields = isClient ? readClient(bytes) : decodeServerPacket(bytes, VERSION, KEYS).fields;
      t.match(fields, EXPECTED[name], name);
    }
  },
);

t.test(
  "the payload of the sample SEND decrypts to the text in docs/compat/wkproto.md",
  async (t) => {
    const bytes = packets.find(({ name }) => name === "SEND")?.bytes;
    const { payload, msgKey } = readSend(bodyOf(bytes), VERSION);
    const cipher = new PayloadCipher(KEYS.aesKey, KEYS.iv);
    t.equal(String(cipher.decrypt(payload)), '{"content":"hi","type":1}');
    t.equal(msgKeyOf(KEYS, `1cm-0001u21${payload}`), msgKey, "the msgKey signs the payload");
  },
);

t.test("encrypting the same RECV again for one connection gives the same bytes", async (t) => {
  const bytes = packets.find(({ name }) => name === "RECV")?.bytes;
  const cipher = new PayloadCipher(KEYS.aesKey, KEYS.iv);
  const recv = new EncryptedRecv(
    {
      ...{ flags: 2, setting: 0, fromUid: "u2", channelId: "u2" },
      ...{ channelType: 1, expireS: 0, clientMsgNo: "cm-0002" },
      ...{ messageId: 1234567890123456790n, messageSeq: 43 },
      ...{ timestampS: 1_700_000_001, topic: "" },
      payload: Buffer.from('{"content":"yo","type":1}'),
    },
    VERSION,
  );
  for (const time of ["first", "second", "third"])
    t.same(
      Buffer.from(recv.encryptFor(cipher)),
      bytes,
      `the ${time} encryption has the bytes of the page`,
    );
});

t.test("docs/compat/wkproto.md lists all reason codes", async (t) => {
  const [, text = ""] = /## Reason codes\n([^#]+)/.exec(page) ?? [];
  const listed = [...text.matchAll(/^\| (\d+) \|/gm)].map(([, n]) => Number(n));
  const codes = Object.keys(ERRORS) as ErrorCode[]; // the table has no other keys
  const used = [...codes.map(reasonOf), SUCCESS_REASON, KICKED_REASON];
  t.same(
    listed,
    [...new Set(used)].toSorted((a, b) => a - b),
  );
});

/** Returns the body of a packet. */
function bodyOf(bytes: Buffer = Buffer.alloc(0)): Buffer {
  const [packet] = [...new PacketSplitter(65_536).split(bytes)];
  return packet === undefined ? Buffer.alloc(0) : packetOf(packet).body;
}

/** Returns the fields of a client's packet. */
function readClient(bytes: Buffer): object {
  const body = bodyOf(bytes);
  switch (bytes.readUInt8(0) >> 4) {
    case 1:
      return readConnect(body);
    case 3:
      return readSend(body, VERSION);
    case 6:
      return readRecvack(body);
    default:
      return {};
  }
}
