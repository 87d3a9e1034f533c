// Sends commands and reads command inboxes in tests. A mark is a command that is pushed after all
// earlier commands. The marks are counted, so that each mark is unique.

import type { Test } from "tap";
import type { ChannelRef } from "../../src/broker/model.ts";
import { type NativeClient, textOf } from "../support/native-session.ts";
import { person, type World } from "./world.ts";

/** Sends a command whose content is `text`. `fields` replace fields of the body. */
export async function sendCommand(
  world: World,
  from: string,
  channel: ChannelRef,
  text: string,
  fields: object = {},
) {
  const content = { type: 99, cmd: "cmd", param: {}, content: text };
  const payload = Buffer.from(JSON.stringify(content)).toString("base64");
  return world.send(from, channel, "", { payload, ...fields });
}

const MARK = "mark ";
let marks = 0;

/** Returns `<inboxSeq> <text>` of each command pushed so far, without marks. */
function commandTexts(client: NativeClient): readonly string[] {
  return client.commands
    .map(({ inboxSeq, message }) => `${inboxSeq} ${textOf(message)}`)
    .filter((line) => !line.includes(MARK));
}

/**
 * Returns every command of the inbox. The user sends another command as a mark of the end, because
 * the sender's sessions are pushed that command after the commands of the inbox.
 */
export async function commandsOf(client: NativeClient, world: World): Promise<readonly string[]> {
  marks += 1;
  const mark = `${MARK}${marks}`;
  await sendCommand(world, client.uid, person("nobody"), mark);
  await client.waitFor(() => client.commands.some(({ message }) => textOf(message) === mark), mark);
  return commandTexts(client);
}

/** Waits until `count` commands were pushed. Returns all commands. */
export async function untilCommands(
  client: NativeClient,
  count: number,
): Promise<readonly string[]> {
  await client.waitFor(() => commandTexts(client).length >= count, `${count} commands`);
  return commandTexts(client);
}

/** Returns the commands that a new device of `uid` is pushed. */
export async function pulledCommands(
  t: Test,
  uid: string,
  world: World,
): Promise<readonly string[]> {
  return commandsOf(await world.connect(t, uid), world);
}
