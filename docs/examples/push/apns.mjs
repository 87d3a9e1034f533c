// Pushes to iOS with APNs. A device is the token that the app got from iOS. APNS_KEY_FILE is the .p8
// file, APNS_KEY_ID and APNS_TEAM_ID its ids, and APNS_TOPIC the bundle id of the app.

import { sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect } from "node:http2";
import { Refused, receive } from "./receiver.mjs";

const { APNS_KEY_FILE, APNS_KEY_ID, APNS_TEAM_ID, APNS_TOPIC } = process.env;
const { APNS_URL = "https://api.push.apple.com" } = process.env;
const base64 = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
let token = { text: "", madeS: 0 };
let session;

function bearer() {
  const nowS = Math.floor(Date.now() / 1000);
  if (nowS - token.madeS < 1800) return token.text; // APNs refuses tokens older than an hour
  const content = `${base64({ alg: "ES256", kid: APNS_KEY_ID })}.${base64({ iss: APNS_TEAM_ID, iat: nowS })}`;
  const key = { key: readFileSync(APNS_KEY_FILE), dsaEncoding: "ieee-p1363" };
  const signature = sign("sha256", Buffer.from(content), key).toString("base64url");
  token = { text: `${content}.${signature}`, madeS: nowS };
  return token.text;
}

receive(async (device, { from, text, channel }) => {
  if (session === undefined || session.closed || session.destroyed)
    session = connect(APNS_URL).on("error", () => {}); // the request rejects too
  const headers = { ":method": "POST", ":path": `/3/device/${device}`, "apns-topic": APNS_TOPIC };
  const request = session.request({
    ...headers,
    "apns-push-type": "alert",
    authorization: `bearer ${bearer()}`,
  });
  request.end(
    JSON.stringify({ aps: { alert: { title: from, body: text }, "thread-id": channel } }),
  );
  const status = await new Promise((resolve, reject) =>
    request.on("response", (reply) => resolve(reply[":status"])).on("error", reject),
  );
  request.resume();
  // 400 and 410: the token is not valid, or the app was removed. Delete the token.
  const error = `APNs replied ${status}`;
  if (status === 400 || status === 410) throw new Refused(error);
  if (status !== 200) throw new Error(error);
});
