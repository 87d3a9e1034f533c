// The two implementations of the checksum, with known values and compared with each other.

import { crc32, crc32ByTable, crc32OfText } from "../../src/lib/crc32.ts";
import { t } from "../support/suite.ts";

t.test(
  "both implementations of CRC-32 return the known check value, and equal checksums for other data",
  async (t) => {
    const check = Buffer.from("123456789");
    t.equal(crc32ByTable(check), 0xcbf43926);
    t.equal(crc32(check), 0xcbf43926);
    const [head, tail] = [check.subarray(0, 4), check.subarray(4)];
    t.equal(crc32ByTable(tail, crc32ByTable(head)), 0xcbf43926);
    for (const seed of [0, 1, 0xffffffff, 0x12345678])
      for (const size of [0, 1, 255, 1000]) {
        const data = Buffer.alloc(size, "xyz");
        t.equal(crc32ByTable(data, seed), crc32(data, seed));
      }
  },
);

t.test("the checksum of a text equals the checksum of its UTF-8 bytes", async (t) => {
  const texts = [
    "",
    "2:group",
    "123456789",
    "\u007f",
    "\u0080",
    "1:ann@böb",
    "2:群组",
    "😀",
    "a\ud800b",
  ];
  for (const text of texts) t.equal(crc32OfText(text), crc32(Buffer.from(text)), text);
});
