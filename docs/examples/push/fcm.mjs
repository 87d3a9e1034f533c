// Pushes to Android with FCM. A device is the registration token of the app. FCM_ACCOUNT_FILE is the
// JSON file of a service account of the project.

import { readFileSync } from "node:fs";
import { reused, signedToken } from "./jwt.mjs";
import { check, receive } from "./receiver.mjs";

const { FCM_ACCOUNT_FILE, FCM_URL = "https://fcm.googleapis.com" } = process.env;
const account = JSON.parse(readFileSync(FCM_ACCOUNT_FILE, "utf8"));
const { client_email: iss, token_uri: aud, private_key: key, project_id: project } = account;
const scope = "https://www.googleapis.com/auth/firebase.messaging";
const grant_type = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const tokenOf = reused(async (iat) => {
  const claims = { iss, scope, aud, iat, exp: iat + 3600 };
  const assertion = signedToken({ alg: "RS256", typ: "JWT" }, claims, key);
  const body = new URLSearchParams({ grant_type, assertion });
  const reply = await fetch(aud, { method: "POST", body });
  check("Google", reply.status, []);
  return (await reply.json()).access_token;
});

receive(async (device, { from, text, channel }) => {
  const message = { token: device, notification: { title: from, body: text }, data: { channel } };
  const authorization = `Bearer ${await tokenOf()}`;
  const headers = { authorization, "content-type": "application/json" };
  const body = JSON.stringify({ message });
  const url = `${FCM_URL}/v1/projects/${project}/messages:send`;
  const { status } = await fetch(url, { method: "POST", headers, body });
  check("FCM", status, [400, 404]); // the token is not valid, or the app was removed
});
