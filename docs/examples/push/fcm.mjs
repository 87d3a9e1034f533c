// Pushes to Android with FCM. A device is the registration token of the app. FCM_ACCOUNT_FILE is the
// JSON file of a service account of the project.

import { sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { Refused, receive } from "./receiver.mjs";

const account = JSON.parse(readFileSync(process.env.FCM_ACCOUNT_FILE, "utf8"));
const { FCM_URL = "https://fcm.googleapis.com" } = process.env;
const base64 = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
let token = { text: "", untilMs: 0 };

async function bearer() {
  if (Date.now() < token.untilMs) return token.text;
  const { client_email: iss, token_uri: aud, private_key: key } = account;
  const iat = Math.floor(Date.now() / 1000);
  const scope = "https://www.googleapis.com/auth/firebase.messaging";
  const content = `${base64({ alg: "RS256", typ: "JWT" })}.${base64({ iss, scope, aud, iat, exp: iat + 3600 })}`;
  const assertion = `${content}.${sign("sha256", Buffer.from(content), key).toString("base64url")}`;
  const grant_type = "urn:ietf:params:oauth:grant-type:jwt-bearer";
  const reply = await fetch(aud, {
    method: "POST",
    body: new URLSearchParams({ grant_type, assertion }),
  });
  const { access_token: text, expires_in: seconds } = await reply.json();
  token = { text, untilMs: Date.now() + (seconds - 60) * 1000 };
  return text;
}

receive(async (device, { from, text, channel }) => {
  const message = { token: device, notification: { title: from, body: text }, data: { channel } };
  const reply = await fetch(`${FCM_URL}/v1/projects/${account.project_id}/messages:send`, {
    method: "POST",
    headers: { authorization: `Bearer ${await bearer()}`, "content-type": "application/json" },
    body: JSON.stringify({ message }),
  });
  // 400 and 404: the token is not valid, or the app was removed. Delete the token.
  const error = `FCM replied ${reply.status}`;
  if (reply.status === 400 || reply.status === 404) throw new Refused(error);
  if (!reply.ok) throw new Error(error);
});
