// The command `jindou watch`: opens a client session for a user and prints the user's messages,
// streams and events until the process is stopped or `--count` messages were printed.

import type { Client, LiveStream, ReceivedEvent, ReceivedMessage, Stream } from "../client/api.ts";
import { connect } from "../client/index.ts";
import { USER_TOKEN_ENV } from "../config/sources.ts";
import { parseAddress } from "../lib/address.ts";
import { type Deferred, deferred } from "../lib/deferred.ts";
import { printable } from "../lib/printable.ts";
import { type Api, type ApiConfig, reachable } from "./api.ts";
import { CommandError, FAILED, NO_ANSWER, usageError } from "./command-error.ts";
import { deviceFlagOf, numberOf, type Output, registerToken, uidOf } from "./commands.ts";
import { channelName, messageLine, payloadText, timeOf } from "./message-text.ts";
import { type Env, secretOf } from "./secret.ts";
import type { Arguments } from "./usage.ts";

interface WatchConfig extends ApiConfig {
  readonly client: { readonly listen: string; readonly tls: { readonly certFile: string } };
}

interface WatchPorts {
  readonly api: Api;
  readonly config: WatchConfig;
  readonly output: Output;
  readonly env: Env;
  readonly stopping: AbortSignal;
}

/**
 * Prints the messages that a user receives. Resolves when the process must stop, or after `--count`
 * messages.
 */
export async function watch(args: Arguments, ports: WatchPorts): Promise<void> {
  const { output, stopping } = ports;
  const count = numberOf(args.flags, "count", { min: 1 });
  const ended = deferred<void>();
  stopping.addEventListener("abort", () => ended.resolve());
  const session = await Promise.race([sessionOf(args, ports), ended.promise]);
  if (session === undefined) return; // stopped before the API responded
  const client = connect(session);
  try {
    reportConnection(client, { url: session.url, ended, output });
    printReceived(client, { count, ended, output });
    await ended.promise;
  } finally {
    await client.close();
  }
}

/**
 * Returns the address and the credential of the session. Registers a new token if the environment
 * contains no token.
 */
async function sessionOf(args: Arguments, ports: WatchPorts) {
  const { flags } = args;
  const uid = uidOf(args.words);
  const ownToken = secretOf(ports.env, USER_TOKEN_ENV);
  const deviceFlag = deviceFlagOf(
    flags.get("device") ?? (ownToken === undefined ? "desktop" : "web"),
  );
  const url = flags.get("client") ?? (await clientUrl(args, ports));
  if (!/^(wss?|https?):\/\//.test(url))
    throw usageError(
      `--client must be a URL such as ws://127.0.0.1:5200, not ${JSON.stringify(url)}.`,
    );
  const token =
    ownToken ?? (await registerToken(ports.api, { uid, deviceFlag, deviceLevel: 0 })).token;
  return { url, uid, token, deviceFlag };
}

/**
 * Returns the URL for clients. The URL comes from the configuration, or from `/route` if `--api`
 * names a node. If the node has no address for clients, uses the host in `--api` and the port in
 * the configuration.
 */
async function clientUrl({ words, flags }: Arguments, ports: WatchPorts): Promise<string> {
  const { api, config } = ports;
  const { listen, tls } = config.client;
  const scheme = tls.certFile === "" ? "ws" : "wss";
  if (!flags.has("api")) return `${scheme}://${reachable(listen, "--client=ws://<host>:<port>")}`;
  const route = await api.call(`/route?uid=${encodeURIComponent(uidOf(words))}`);
  const [address] = [route.wss_addr, route.ws_addr].filter((value) => value !== "");
  if (typeof address === "string") return address.includes("://") ? address : `ws://${address}`;
  const port = parseAddress(listen)?.port ?? 0;
  return `${scheme}://${api.url.hostname}:${port}`;
}

interface Watching {
  readonly ended: Deferred<void>;
  readonly output: Output;
}

function reportConnection(
  client: Client,
  { url, ended, output }: Watching & { readonly url: string },
): void {
  let wasOnline = false;
  client.on("status", (status) => {
    if (status === "online") {
      output.note(
        wasOnline
          ? "Reconnected."
          : `Connected to ${url} as ${printable(client.uid)}. Stop with Ctrl-C.`,
      );
      wasOnline = true;
    } else if (status === "offline" && wasOnline)
      output.note("The connection was lost. Trying to reconnect.");
  });
  client.on("kicked", ({ reason, message }) =>
    ended.reject(new CommandError(`The node ended the session: ${message} (${reason}).`, FAILED)),
  );
  client.on("error", (error) => {
    if (!wasOnline && error.code === "connection_lost")
      ended.reject(
        new CommandError(
          `No node accepts clients at ${url}: ${printable(error.message)}. Name the address for clients with --client.`,
          NO_ANSWER,
        ),
      );
    else if (!wasOnline && !error.retry)
      ended.reject(new CommandError(`${printable(error.message)} (${error.code}).`, FAILED));
    else if (error.code !== "connection_lost")
      output.note(`${printable(error.message)} (${error.code}).`);
  });
}

function printReceived(
  client: Client,
  { count, ended, output }: Watching & { readonly count: number | undefined },
): void {
  const followed = new WeakSet<LiveStream>();
  const follow = (stream: Stream): void => {
    const live = client.stream(stream);
    if (followed.has(live)) return;
    followed.add(live);
    void printStream(live, output).catch(() => undefined); // the client was closed or kicked
  };
  let messages = 0;
  client.on("message", (message) => {
    if (messages === count) return; // the client is closing
    output.print(output.isJson ? messageJson(message) : lineOf(message));
    if (message.stream !== undefined) follow(message.stream);
    messages += 1;
    if (messages === count) ended.resolve();
  });
  client.on("stream", follow);
  client.on("event", (event) => output.print(output.isJson ? eventJson(event) : eventLine(event)));
}

function lineOf({ channel, payload, ...message }: ReceivedMessage): string {
  const { stream } = message;
  return messageLine({
    ...message,
    channelId: channel.id,
    channelType: channel.type,
    text: stream === undefined ? payloadText(payload) : "(a stream begins)",
  });
}

function messageJson(message: ReceivedMessage): string {
  const { channel, payload } = message;
  return JSON.stringify({
    event: "message",
    message_id: message.messageId,
    message_seq: message.messageSeq,
    client_msg_no: message.clientMsgNo,
    from_uid: message.fromUid,
    channel_id: channel.id,
    channel_type: channel.type,
    timestamp_ms: message.timestampMs,
    payload: Buffer.from(payload).toString("base64"),
  });
}

function eventLine({ channel, fromUid, type, data, timestampMs }: ReceivedEvent): string {
  const place = channelName({ channelId: channel.id, channelType: channel.type });
  return `${timeOf(timestampMs)} ${place} ${printable(fromUid)} event ${printable(type)}: ${printable(data)}`;
}

function eventJson({ channel, ...event }: ReceivedEvent): string {
  return JSON.stringify({
    event: "event",
    event_id: event.eventId,
    client_msg_no: event.clientMsgNo,
    from_uid: event.fromUid,
    channel_id: channel.id,
    channel_type: channel.type,
    timestamp_ms: event.timestampMs,
    type: event.type,
    data: event.data,
  });
}

async function printStream(live: LiveStream, { isJson, print }: Output): Promise<void> {
  const { channel, clientMsgNo } = live.snapshot();
  const place = channelName({ channelId: channel.id, channelType: channel.type });
  const common = {
    client_msg_no: clientMsgNo,
    channel_id: channel.id,
    channel_type: channel.type,
  };
  const line = (text: string) => {
    const { messageSeq, fromUid } = live.snapshot();
    return `${timeOf(Date.now())} ${place} #${messageSeq} ${printable(fromUid)} ${text}`;
  };
  for await (const text of live)
    print(
      isJson
        ? JSON.stringify({ event: "stream_text", ...common, text })
        : line(`writes: ${printable(text)}`),
    );
  const { state } = live.snapshot();
  print(
    isJson ? JSON.stringify({ event: "stream_end", ...common, state }) : line(`stream ${state}`),
  );
}
