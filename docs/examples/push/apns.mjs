// Pushes to iOS with APNs. A device is the token that the app got from iOS. APNS_KEY_FILE is the .p8
// file, APNS_KEY_ID and APNS_TEAM_ID its ids, and APNS_TOPIC the bundle id of the app.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { connect } from "node:http2";
import { reused, signedToken } from "./jwt.mjs";
import { check, receive } from "./receiver.mjs";

const { APNS_KEY_FILE, APNS_KEY_ID: kid, APNS_TEAM_ID: iss, APNS_TOPIC } = process.env;
const { APNS_URL = "https://api.push.apple.com" } = process.env;
const key = readFileSync(APNS_KEY_FILE);
const tokenOf = reused((iat) => signedToken({ alg: "ES256", kid }, { iss, iat }, key));
let session;

receive(async (device, { from, text, channel }) => {
  const token = await tokenOf();
  if (session === undefined || session.closed || session.destroyed)
    session = connect(APNS_URL).on("error", () => {}); // the request rejects too
  const request = session.request({
    ...{ ":method": "POST", ":path": `/3/device/${device}`, "apns-topic": APNS_TOPIC },
    ...{ "apns-push-type": "alert", authorization: `bearer ${token}` },
  });
  const aps = { alert: { title: from, body: text }, "thread-id": channel };
  request.end(JSON.stringify({ aps }));
  const [{ ":status": status }] = await once(request, "response");
  request.resume();
  check("APNs", status, [400, 410]); // the token is not valid, or the app was removed
});
