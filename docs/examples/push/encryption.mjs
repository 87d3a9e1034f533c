// Encrypts a push message for a browser [RFC 8291].

import { createCipheriv, createECDH, hkdfSync, randomBytes } from "node:crypto";

const RECORD_BYTES = 4096;
const END = "\u0002"; // ends the only record

/** `p256dh` and `auth` are the keys of the subscription. */
export function encrypted(text, { p256dh, auth }) {
  const own = createECDH("prime256v1");
  const ownKey = own.generateKeys();
  const browserKey = Buffer.from(p256dh, "base64url");
  const salt = randomBytes(16);
  const derive = (secret, from, info, bytes) =>
    Buffer.from(hkdfSync("sha256", secret, from, info, bytes));
  const info = Buffer.concat([Buffer.from("WebPush: info\0"), browserKey, ownKey]);
  const shared = own.computeSecret(browserKey);
  const secret = derive(shared, Buffer.from(auth, "base64url"), info, 32);
  const nonce = derive(secret, salt, "Content-Encoding: nonce\0", 12);
  const key = derive(secret, salt, "Content-Encoding: aes128gcm\0", 16);
  const cipher = createCipheriv("aes-128-gcm", key, nonce);
  const body = [cipher.update(text + END), cipher.final(), cipher.getAuthTag()];
  const head = Buffer.alloc(5);
  head.writeUInt32BE(RECORD_BYTES);
  head[4] = ownKey.length;
  return Buffer.concat([salt, head, ownKey, ...body]);
}
