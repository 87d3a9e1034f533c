// Pushes to browsers. A device is the subscription of a page, as `pushManager.subscribe` returned it.
// VAPID_KEY_FILE is a key that `openssl ecparam -name prime256v1 -genkey -noout` made.

import {
  createCipheriv,
  createECDH,
  createPublicKey,
  hkdfSync,
  randomBytes,
  sign,
} from "node:crypto";
import { readFileSync } from "node:fs";
import { Refused, receive } from "./receiver.mjs";

const key = readFileSync(process.env.VAPID_KEY_FILE);
const { x, y } = createPublicKey(key).export({ format: "jwk" });
const point = Buffer.concat([
  Buffer.from([4]),
  Buffer.from(x, "base64url"),
  Buffer.from(y, "base64url"),
]);
const base64 = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

function authorization(endpoint) {
  const claims = {
    aud: new URL(endpoint).origin,
    exp: Math.floor(Date.now() / 1000) + 3600,
    sub: "mailto:ops@example.com",
  };
  const content = `${base64({ alg: "ES256", typ: "JWT" })}.${base64(claims)}`;
  const signature = sign("sha256", Buffer.from(content), { key, dsaEncoding: "ieee-p1363" });
  return `vapid t=${content}.${signature.toString("base64url")}, k=${point.toString("base64url")}`;
}

/** Encrypts for the browser [RFC 8291]. */
function encrypted(text, { p256dh, auth }) {
  const own = createECDH("prime256v1");
  const [ownKey, browserKey, salt] = [
    own.generateKeys(),
    Buffer.from(p256dh, "base64url"),
    randomBytes(16),
  ];
  const derive = (secret, from, info, bytes) =>
    Buffer.from(hkdfSync("sha256", secret, from, info, bytes));
  const info = Buffer.concat([Buffer.from("WebPush: info\0"), browserKey, ownKey]);
  const secret = derive(own.computeSecret(browserKey), Buffer.from(auth, "base64url"), info, 32);
  const nonce = derive(secret, salt, "Content-Encoding: nonce\0", 12);
  const cipher = createCipheriv(
    "aes-128-gcm",
    derive(secret, salt, "Content-Encoding: aes128gcm\0", 16),
    nonce,
  );
  const body = [cipher.update(`${text}\u0002`), cipher.final(), cipher.getAuthTag()];
  return Buffer.concat([salt, Buffer.from([0, 0, 16, 0, ownKey.length]), ownKey, ...body]);
}

receive(async ({ endpoint, keys }, message) => {
  const headers = {
    authorization: authorization(endpoint),
    "content-encoding": "aes128gcm",
    ttl: "86400",
  };
  const body = encrypted(JSON.stringify(message), keys);
  const { ok, status } = await fetch(endpoint, { method: "POST", headers, body });
  // 400, 404 and 410: the subscription is not valid or has ended. Delete it.
  const error = `The push service replied ${status}`;
  if ([400, 404, 410].includes(status)) throw new Refused(error);
  if (!ok) throw new Error(error);
});
