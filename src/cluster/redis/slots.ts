// Which of a Redis Cluster's slots a name is in: CRC-16 (XMODEM) of its hash tag. Pure.

export const SLOTS = 16_384;

const table = new Uint16Array(256).map((_, byte) => {
  let crc = byte << 8;
  for (let bit = 0; bit < 8; bit++)
    crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  return crc & 0xffff;
});

/** The slot of a key or of a sharded publish/subscribe channel. */
export function slotOf(name: string): number {
  const open = name.indexOf("{");
  const end = open < 0 ? -1 : name.indexOf("}", open + 1);
  const hashed = end > open + 1 ? name.slice(open + 1, end) : name;
  let crc = 0;
  for (const byte of Buffer.from(hashed))
    crc = ((crc << 8) ^ (table[((crc >> 8) ^ byte) & 0xff] ?? 0)) & 0xffff;
  return crc % SLOTS;
}
