// A short program that uses the SDK's package, for tests in several runtimes and test runners.

import { fileURLToPath } from "node:url";
import type { Broker } from "../support/broker.ts";

/** Folder of the built package. */
export const CLIENT_PACKAGE = fileURLToPath(new URL("../../dist-client", import.meta.url));

export async function registerTalkers({ call }: Pick<Broker, "call">): Promise<void> {
  const subscribers = ["amy", "ben"];
  for (const uid of subscribers)
    await call("/user/token", { uid, token: `${uid}-token`, device_flag: 1 });
  await call("/channel", { channel_id: "talk", channel_type: 2, subscribers });
}

/** Statements that need `connect` and `group`. The first argument is the broker's address. */
export const TALK = `
const text = "grüß 𝄞 🙂 ".repeat(20) + "y".repeat(20000);
const url = process.argv[2];
const amy = connect({ url, uid: "amy", token: "amy-token" });
const ben = connect({ url, uid: "ben", token: "ben-token" });
const received = new Promise((resolve) => ben.on("message", resolve));
await Promise.all([amy.ready(), ben.ready()]);
const sent = await amy.send(group("talk"), text);
await amy.send(group("talk"), new Uint8Array([123, 34, 116, 121, 112, 101, 34, 58, 49, 125]).buffer);
const message = await received;
const { messages } = await ben.history(group("talk"), { limit: 2 });
await Promise.all([amy.close(), ben.close()]);
const works =
  message.content.content === text && message.messageId === sent.messageId &&
  message.timestampMs === sent.timestampMs && messages.length === 2 && amy.status === "closed";
console.log(works ? "works" : JSON.stringify({ message, sent }));
`;
