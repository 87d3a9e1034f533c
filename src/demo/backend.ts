// The backend of the demo: it registers the users' tokens, creates their group, and sends the bot's
// replies. A real app does this on its server, which has a credential for the API. In protected
// mode the API needs no credential and accepts calls from its own pages.

import { FAKE_ANSWER, HISTORY, randomLetters, type World } from "./world.ts";

/** Time in seconds after which the messages are removed from the store. */
export const EXPIRE_S = 3600;
const GROUP = 2;
const WORD_MS = 100;

/** Calls the API. The call completes even if the page is closed before the reply. */
async function post(path: string, body: object): Promise<{ stream?: { state: string } }> {
  const response = await fetch(path, {
    method: "POST",
    keepalive: true,
    headers: { "content-type": "application/json", "jindou-dialect": "jindou" },
    body: JSON.stringify(body),
  });
  const reply = await response.json();
  if (!response.ok) throw new Error(`${path} failed with ${response.status}: ${reply.error}`);
  return reply;
}

/** Registers the users' tokens for main devices, creates the group and stores its messages. */
export async function setUp({ users, group, bot }: World): Promise<void> {
  for (const { uid, token } of users)
    await post("/user/token", { uid, token, device_flag: 1, device_level: 1 });
  const subscribers = [...users.map(({ uid }) => uid), bot];
  await post("/channel", { channel_id: group, channel_type: GROUP, subscribers });
  for (const [n, content] of HISTORY.entries())
    await post("/message/send", {
      channel_id: group,
      channel_type: GROUP,
      from_uid: users[n % 2]?.uid,
      payload: base64(JSON.stringify({ type: 1, content })),
      expire: EXPIRE_S,
    });
}

/** Sends the bot's reply to the group word by word, until it is complete or a user stops it. */
export async function answer({ group, bot }: World): Promise<void> {
  const channel = { channel_id: group, channel_type: GROUP };
  const stream = { ...channel, client_msg_no: randomLetters(24), from_uid: bot, expire: EXPIRE_S };
  const event = (type: string, data = "") =>
    post("/event", { ...stream, event: { type: `___TextMessage${type}`, data } });
  await event("Start");
  for (const word of FAKE_ANSWER.split(/\s+/)) {
    await new Promise((resolve) => setTimeout(resolve, WORD_MS));
    const { stream } = await event("Content", `${word} `);
    if (stream?.state === "cancelled") return;
  }
  await event("End");
}

/** Removes the group, and logs the users out, which also invalidates their tokens. */
export async function cleanUp({ users, group }: World): Promise<void> {
  const quits = users.map(({ uid }) => post("/user/device_quit", { uid, device_flag: -1 }));
  const deletion = post("/channel/delete", { channel_id: group, channel_type: GROUP });
  await Promise.allSettled([...quits, deletion]);
}

function base64(text: string): string {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}
