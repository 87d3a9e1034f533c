// What a user's command inbox gives its devices, read to its end. State: a counter that makes marks
// unique.

import type { Test } from "tap";
import type { ChannelRef } from "../../src/broker/model.ts";
import { type NativeClient, textOf } from "../support/native-session.ts";
import { person, type World } from "./world.ts";

/** Sends a command whose content is `text`; `more` wins. */
export async function command(
  on: World,
  from: string,
  channel: ChannelRef,
  text: string,
  more: object = {},
) {
  const content = { type: 99, cmd: "cmd", param: {}, content: text };
  const payload = Buffer.from(JSON.stringify(content)).toString("base64");
  return on.send(from, channel, "", { payload, ...more });
}

const MARK = "mark ";
let marks = 0;

/** `inboxSeq text` of each command that came so far, marks left out. */
function listed(client: NativeClient): readonly string[] {
  return client.commands
    .map(({ inboxSeq, message }) => `${inboxSeq} ${textOf(message)}`)
    .filter((line) => !line.includes(MARK));
}

/**
 * All that came, and all that was to come: a command of the user's own, which its sessions are told
 * of behind the inbox, marks the end.
 */
export async function got(client: NativeClient, on: World): Promise<readonly string[]> {
  marks += 1;
  const mark = `${MARK}${marks}`;
  await command(on, client.uid, person("nobody"), mark);
  await client.waitFor(() => client.commands.some(({ message }) => textOf(message) === mark), mark);
  return listed(client);
}

export async function gets(client: NativeClient, count: number): Promise<readonly string[]> {
  await client.waitFor(() => listed(client).length >= count, `${count} commands`);
  return listed(client);
}

/** What a new device of `uid` is given. */
export async function pulled(t: Test, uid: string, on: World): Promise<readonly string[]> {
  return got(await on.connect(t, uid), on);
}
