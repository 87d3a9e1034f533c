// Pushes to browsers. A device is the subscription of a page, as `pushManager.subscribe` returned it.
// VAPID_KEY_FILE is a key that `openssl ecparam -name prime256v1 -genkey -noout` made.

import { createPublicKey } from "node:crypto";
import { readFileSync } from "node:fs";
import { encrypted } from "./encryption.mjs";
import { signedToken } from "./jwt.mjs";
import { check, receive } from "./receiver.mjs";

const key = readFileSync(process.env.VAPID_KEY_FILE);
const { x, y } = createPublicKey(key).export({ format: "jwk" });
const coordinates = [x, y].map((text) => Buffer.from(text, "base64url"));
const publicKey = Buffer.concat([Buffer.from([4]), ...coordinates]).toString("base64url");

receive(async ({ endpoint, keys }, message) => {
  const exp = Math.floor(Date.now() / 1000) + 3600;
  const claims = { aud: new URL(endpoint).origin, exp, sub: "mailto:ops@example.com" };
  const token = signedToken({ alg: "ES256", typ: "JWT" }, claims, key);
  const headers = {
    authorization: `vapid t=${token}, k=${publicKey}`,
    ...{ "content-encoding": "aes128gcm", ttl: "86400" },
  };
  const body = encrypted(JSON.stringify(message), keys);
  const { status } = await fetch(endpoint, { method: "POST", headers, body });
  check("The push service", status, [400, 404, 410]); // not valid, or it has ended
});
