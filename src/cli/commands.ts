// The commands that call the HTTP API of a running node: health, token, send, history and events.

import { randomBytes } from "node:crypto";
import { text as readAll } from "node:stream/consumers";
import { printable } from "../lib/printable.ts";
import type { Api } from "./api.ts";
import { CommandError, FAILED, NO_ANSWER, usageError } from "./command-error.ts";
import { messageLine, payloadText } from "./message-text.ts";
import type { Arguments } from "./usage.ts";

/** The destination and the format of a command's output. */
export interface Output {
  readonly isJson: boolean;
  print(line: string): void;
  /** Writes a sentence for the command's user to standard error. */
  note(line: string): void;
}

export async function health(api: Api, output: Output): Promise<void> {
  const { status, body } = await api.request("/readyz");
  const { origin } = api.url;
  if (output.isJson) output.print(JSON.stringify(body));
  if (status === 200) {
    if (!output.isJson) output.print(`The node at ${origin} is ready.`);
    return;
  }
  const reason = String(body.error ?? body.msg ?? `it responds with status ${status}`);
  // A server that is not Jindou has no path `/readyz`.
  if (status !== 503)
    throw new CommandError(
      `${origin} is not the API of Jindou: ${reason}. Name the API with --api.`,
      NO_ANSWER,
    );
  throw new CommandError(`The node at ${origin} is not ready: ${reason}.`, FAILED);
}

const TOKEN_BYTES = 24;
const DEVICE_FLAGS: Readonly<Record<string, 0 | 1 | 2>> = { app: 0, web: 1, desktop: 2 };

/** Returns the device flag. Throws a CommandError if the name is unknown. */
export function deviceFlagOf(device: string): 0 | 1 | 2 {
  const flag = Object.hasOwn(DEVICE_FLAGS, device) ? DEVICE_FLAGS[device] : undefined;
  if (flag !== undefined) return flag;
  throw usageError(`--device must be app, web or desktop, not ${JSON.stringify(device)}.`);
}

export async function token(api: Api, { words, flags }: Arguments, output: Output): Promise<void> {
  const deviceFlag = deviceFlagOf(flags.get("device") ?? "web");
  const registered = await registerToken(api, {
    uid: uidOf(words),
    deviceFlag,
    deviceLevel: flags.has("main") ? 1 : 0,
  });
  output.print(output.isJson ? JSON.stringify(registered) : registered.token);
}

/** Registers a new random token, which replaces the user's previous token for this device flag. */
export async function registerToken(
  api: Api,
  device: { readonly uid: string; readonly deviceFlag: 0 | 1 | 2; readonly deviceLevel: 0 | 1 },
): Promise<{ readonly token: string }> {
  const registered = {
    uid: device.uid,
    token: randomBytes(TOKEN_BYTES).toString("base64url"),
    device_flag: device.deviceFlag,
    device_level: device.deviceLevel,
  };
  const { status } = await api.call("/user/token", registered);
  // In the `wukongim` dialect, the reply for a banned account is 200 with a different `status`.
  if (status === "ok" || status === 200) return registered;
  throw new CommandError(`The account ${printable(device.uid)} is banned or disbanded.`, FAILED);
}

/** Returns the uid, which is the only argument. Throws a CommandError if it is missing. */
export function uidOf([uid]: readonly string[]): string {
  if (uid === undefined) throw usageError("Name the user, for example alice.");
  return uid;
}

export async function send(api: Api, args: Arguments, output: Output): Promise<void> {
  const { flags } = args;
  const from = required(flags, "from", "the sender");
  const channel = channelOf(flags.get("to"), flags.get("group"), "--to=<uid> or --group=<id>");
  const clientMsgNo = flags.get("client-msg-no");
  const reply = await api.call("/message/send", {
    from_uid: from,
    ...channel,
    header: { red_dot: 1 },
    payload: Buffer.from(await contentOf(args)).toString("base64"),
    ...(clientMsgNo === undefined ? {} : { client_msg_no: clientMsgNo }),
  });
  if (output.isJson) output.print(JSON.stringify(reply));
  else {
    const verb = reply.repeated === 1 ? "Already sent" : "Sent";
    output.print(`${verb} message ${reply.message_id}, seq ${reply.message_seq}.`);
  }
}

async function contentOf({ words: [word], flags }: Arguments): Promise<string> {
  const payload = flags.get("payload");
  if (payload !== undefined && word !== undefined)
    throw usageError("Give either a text or --payload, not both.");
  if (payload !== undefined) return payload;
  if (word !== undefined && word !== "-") return JSON.stringify({ type: 1, content: word });
  if (word === undefined && process.stdin.isTTY)
    throw usageError("Write the text as the last argument, or pipe it into the command.");
  const content = (await readAll(process.stdin)).replace(/\r?\n$/, "");
  return JSON.stringify({ type: 1, content });
}

const HISTORY_LIMIT = 20;
const MAX_HISTORY_LIMIT = 500;

export async function history(api: Api, { flags }: Arguments, output: Output): Promise<void> {
  const user = flags.get("user");
  const flag = "--group=<id>, or --user=<uid> and --with=<uid>";
  const channel = channelOf(flags.get("with"), flags.get("group"), flag);
  if ((channel.channel_type === 1) !== (user !== undefined))
    throw usageError(`Name the channel with ${flag}.`);
  const before = numberOf(flags, "before", { min: 1 });
  const after = numberOf(flags, "after", { min: 0 });
  const limit = numberOf(flags, "limit", { min: 1, max: MAX_HISTORY_LIMIT }) ?? HISTORY_LIMIT;
  if (before === 1) return; // no message has a lower number
  const query = new URLSearchParams({
    channel_id: channel.channel_id,
    channel_type: String(channel.channel_type),
    ...(user === undefined ? {} : { uid: user }),
    from_seq: String((after ?? 0) + 1),
    to_seq: String(before === undefined ? 0 : before - 1),
    limit: String(limit),
    order: after === undefined ? "desc" : "asc",
  });
  const reply = await api.call(`/channel/messages?${query}`);
  const messages = reply.messages as readonly ApiMessage[];
  // Without --before and --after, the newest message is the last line, as in a chat.
  const isReversed = before === undefined && after === undefined;
  for (const message of isReversed ? messages.toReversed() : messages)
    output.print(output.isJson ? JSON.stringify(message) : lineOf(message, channel));
  if (messages.length === 0) output.note("The channel has no messages in this range.");
  if (reply.more !== 1 || output.isJson) return;
  const lastSeq = messages.at(-1)?.message_seq;
  const end = before === undefined ? "" : ` --before=${before}`;
  const next = after === undefined ? `--before=${lastSeq}` : `--after=${lastSeq}${end}`;
  output.note(`There are more messages: ${next} shows the next page.`);
}

/**
 * Turns the event feed of the node on or off. If no node responds at the configured address, calls
 * `switchStopped`, which opens the configured embedded store. `switchStopped` returns the cursor,
 * or `undefined` if there is no such store.
 */
export async function events(
  api: Api,
  { words, flags }: Arguments,
  output: Output,
  switchStopped: (isOn: boolean) => Promise<string | undefined>,
): Promise<void> {
  const [feed] = words;
  if (feed !== "on" && feed !== "off") throw usageError("Write on or off.");
  const reply = await api.call("/events/feed", { feed }).catch(async (error: unknown) => {
    const hasNoAnswer = error instanceof CommandError && error.exitCode === NO_ANSWER;
    const cursor =
      hasNoAnswer && !flags.has("api") ? await switchStopped(feed === "on") : undefined;
    if (cursor === undefined) throw error;
    return { feed, cursor };
  });
  if (output.isJson) output.print(JSON.stringify(reply));
  else output.print(`The event feed is ${feed}. Cursor: ${reply.cursor}`);
}

interface ApiMessage {
  readonly message_seq: number;
  readonly from_uid: string;
  readonly timestamp_ms: number;
  readonly payload: string;
  readonly stream?: { readonly state: string; readonly text: string };
}

interface ApiChannel {
  readonly channel_id: string;
  readonly channel_type: 1 | 2;
}

function lineOf(message: ApiMessage, channel: ApiChannel): string {
  const { stream } = message;
  const payload = Buffer.from(message.payload, "base64");
  return messageLine({
    channelId: channel.channel_id,
    channelType: channel.channel_type,
    messageSeq: message.message_seq,
    fromUid: message.from_uid,
    timestampMs: message.timestamp_ms,
    text: stream === undefined ? payloadText(payload) : `${stream.text} (stream ${stream.state})`,
  });
}

function channelOf(user: string | undefined, group: string | undefined, flags: string): ApiChannel {
  if (group !== undefined && user === undefined) return { channel_id: group, channel_type: 2 };
  if (user !== undefined && group === undefined) return { channel_id: user, channel_type: 1 };
  throw usageError(`Name the channel with ${flags}.`);
}

function required(flags: Arguments["flags"], name: string, what: string): string {
  const value = flags.get(name);
  if (value === undefined) throw usageError(`Name ${what} with --${name}=<uid>.`);
  return value;
}

/**
 * Returns the value of a flag as a number, or `undefined` if the flag is absent. Throws a
 * CommandError if it is invalid.
 */
export function numberOf(
  flags: Arguments["flags"],
  name: string,
  { min, max = Number.MAX_SAFE_INTEGER }: { readonly min: number; readonly max?: number },
): number | undefined {
  const text = flags.get(name);
  if (text === undefined) return undefined;
  const value = /^\d+$/.test(text) ? Number(text) : Number.NaN;
  if (value >= min && value <= max) return value;
  throw usageError(
    `--${name} must be an integer from ${min}${max === Number.MAX_SAFE_INTEGER ? "" : ` to ${max}`}, not ${JSON.stringify(text)}.`,
  );
}
