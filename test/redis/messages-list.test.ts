// The list in which messages are published: strings of all lengths are decoded, and a truncated or
// invalid list returns its complete messages. Pure.

import t from "tap";
import {
  decodeFrame,
  encodeExtra,
  encodeRecord,
  framesOf,
  idBeforeOf,
  isMessages,
  messageIdOf,
  messagePublication,
  messageSeqOf,
  packr,
  publicationSeqOf,
} from "../../src/redis/wire.ts";

const publicationOf = (
  bytes: number,
  seq = 7,
  extra = encodeExtra({
    ...{ origin: "x".repeat(bytes), recipients: undefined },
  }),
) =>
  messagePublication({
    ...{ publicationSeq: seq, messageId: 2 ** 52 + seq, messageSeq: seq },
    record: encodeRecord(
      {
        ...{ channel: { id: "g", type: 2 }, fromUid: "a", clientMsgNo: "" },
        ...{ header: { noPersist: false, redDot: true }, expireS: 0 },
        ...{ streamNo: undefined, tagKey: undefined },
        payload: new Uint8Array(bytes),
      },
      1,
    ),
    extra,
  });

/** Encodes a list of several messages as Lua in Redis does. */
const listOf = (publications: readonly Buffer[]) =>
  Buffer.concat([
    publications.length < 6
      ? Buffer.from([0x90 | (3 * publications.length)])
      : Buffer.from([0xdc, 0, 3 * publications.length]),
    ...publications.map((publication) => publication.subarray(1)),
  ]);

for (const bytes of [0, 1, 31, 32, 200, 255, 256, 65_535, 65_536])
  t.test(
    `a message with a payload and an origin of ${bytes} bytes is decoded from its publication`,
    async (t) => {
      const publication = publicationOf(bytes);
      t.ok(isMessages(publication));
      const { frames, isWhole } = framesOf(publication);
      t.ok(isWhole);
      t.equal(frames.length, 1);
      const [frame = Buffer.alloc(0)] = frames;
      t.same(
        [publicationSeqOf(frame), messageIdOf(frame), messageSeqOf(frame)],
        [7, 2 ** 52 + 7, 7],
      );
      const decoded = decodeFrame(frame);
      if (decoded.kind !== "ordered" || decoded.event.kind !== "message")
        throw new Error("The frame is not a message");
      t.equal(decoded.publicationSeq, 7);
      t.equal(decoded.event.message.messageSeq, 7);
      t.ok(Buffer.alloc(bytes).equals(decoded.event.message.payload));
      t.equal(decoded.event.origin, "x".repeat(bytes));
    },
  );

for (const count of [2, 5, 6, 32])
  t.test(
    `${count} messages in one publication are decoded in the same order, and a truncated publication is detected`,
    async (t) => {
      const seqs = Array.from({ length: count }, (_, at) => at + 1);
      const list = listOf(seqs.map((seq) => publicationOf(40, seq)));
      const { frames, isWhole } = framesOf(list);
      t.ok(isWhole);
      t.same(frames.map(publicationSeqOf), seqs);
      const ends = Array.from({ length: list.length }, (_, end) => end);
      const unnoticed = ends.filter((end) => {
        const truncated = framesOf(list.subarray(0, end));
        return truncated.isWhole || truncated.frames.length >= count;
      });
      t.same(unnoticed, []);
    },
  );

t.test("a list whose elements are not messages is read as an empty list", async (t) => {
  const lists = [
    packr.pack(["a", "b", "c"]),
    packr.pack([1, 2, 3]),
    packr.pack(["x".repeat(26), "record"]),
    packr.pack([["x".repeat(26), "record", "extra"]]),
    Buffer.from([0x93, 0xdb, 0xff, 0xff, 0xff, 0xff]),
    Buffer.from([0x93, 0xba]),
    Buffer.from([0xdc]),
    Buffer.from([0x90]),
  ];
  for (const list of lists) {
    t.ok(isMessages(list));
    t.same(framesOf(list).frames, [], list.toString("hex"));
  }
});

t.test("a message frame is rejected if its id of the previous message is invalid", async (t) => {
  for (const id of ["d40000", "c0", "a161", "cbbff0000000000000"]) {
    const extra = Buffer.from(`94c0c0c0${id}`, "hex");
    const [frame = Buffer.alloc(0)] = framesOf(publicationOf(4, 7, extra)).frames;
    t.throws(() => decodeFrame(frame), id);
  }
  const extra = encodeExtra({
    ...{ origin: undefined, recipients: undefined, idBefore: 5 },
  });
  const [frame = Buffer.alloc(0)] = framesOf(publicationOf(4, 7, extra)).frames;
  t.equal(decodeFrame(frame).kind, "ordered");
  t.equal(idBeforeOf(frame), 5);
});
