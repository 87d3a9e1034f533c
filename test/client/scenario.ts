// What an app does with the SDK, as scenarios that run in Node and in a browser: this module
// imports nothing but the SDK. Each returns what it saw beside what it should have seen; the
// runners compare.

import {
  type Client,
  connect,
  group,
  type JindouError,
  person,
  type ReceivedMessage,
} from "../../src/client/index.ts";

/** The broker as a scenario reaches it. */
export interface World {
  readonly url: string;
  /** A backend's POST; resolves with the status. */
  post(path: string, body: object): Promise<number>;
  /** kill -9. */
  kill(): Promise<void>;
  /** Starts it again on the same port and data; resolves when it is ready. */
  start(): Promise<void>;
}

/** What was seen, and what should have been. */
export type Fact = readonly [what: string, seen: unknown, expected: unknown];

type Scenario = (world: World) => Promise<readonly Fact[]>;

export type ScenarioName = keyof typeof SCENARIOS;

export const SCENARIOS = {
  talk,
  follow,
  account,
  kick,
  restart,
  restartStream,
} satisfies Record<string, Scenario>;

/** Two people talk: connect, send, receive, read history. */
async function talk(world: World): Promise<readonly Fact[]> {
  const alice = await login(world, "alice");
  const bob = await login(world, "bob");
  await makeGroup(world, "talk", ["alice", "bob"]);
  const heard = listen(bob);
  const receipts = await Promise.all([
    alice.send(group("talk"), "one", { clientMsgNo: "c1" }),
    alice.send(group("talk"), "two"),
    alice.send(group("talk"), { type: 4, url: "voice", timeTrad: 3 }),
  ]);
  const repeated = await alice.send(group("talk"), "one", {
    clientMsgNo: "c1",
  });
  await alice.send(person("bob"), "psst");
  await until(() => heard.length === 4);
  const own = listen(alice);
  for (const content of ["three", "four"])
    await insist(world, "/message/send", {
      from_uid: "alice",
      ...{ channel_id: "talk", channel_type: 2 },
      payload: btoa(JSON.stringify({ type: 1, content })),
    });
  await until(() => heard.length === 6 && own.length === 2);
  const made = heard.slice(4).map((one) => one.clientMsgNo);
  const { messages, headSeq } = await bob.history(group("talk"));
  const refused = await codeOf(alice.send(group("elsewhere"), "x"));
  await Promise.all([alice.close(), bob.close()]);
  return [
    ["seqs", receipts.map((one) => one.messageSeq), [1, 2, 3]],
    ["a repeated clientMsgNo", repeated, receipts[0]],
    ["in the group", texts(heard, "talk"), ["one", "two", undefined, "three", "four"]],
    ["in person", texts(heard, "alice"), ["psst"]],
    ["history", messages.map((one) => one.messageSeq), [5, 4, 3, 2, 1]],
    ["head", headSeq, 5],
    ["a clientMsgNo made for each message", new Set(made).size, 2],
    ["the same at its sender", own.map((one) => one.clientMsgNo), made],
    [
      "the same in history",
      messages.slice(0, 2).map((one) => one.clientMsgNo),
      [...made].reverse(),
    ],
    ["refusal", refused, "not_subscriber"],
    ["status", [alice.status, bob.status], ["closed", "closed"]],
  ];
}

/** A stream is watched from its beginning, from its middle, and after its end. */
async function follow(world: World): Promise<readonly Fact[]> {
  await makeGroup(world, "show", ["early", "late"]);
  const early = await login(world, "early");
  const first = new Promise<string>((resolve) => {
    early.on("message", async ({ stream }) => {
      let text = "";
      for await (const piece of stream ?? []) text += piece;
      resolve(text);
    });
  });
  const stream = producer(world, "show", "s1");
  await stream.start();
  await stream.write(0, 20);
  const late = await login(world, "late");
  const joined = await late.streamOf(group("show"), "s1");
  const rest: string[] = [];
  const reading = (async () => {
    for await (const piece of joined.pieces("now")) rest.push(piece);
  })();
  const had = joined.text;
  await stream.write(20, 40);
  await stream.end();
  await reading;
  const { messages } = await late.history(group("show"));
  const text = stream.text();
  await Promise.all([early.close(), late.close()]);
  return [
    ["from the beginning", await first, text],
    ["from the middle", had + rest.join(""), text],
    ["text", joined.text, text],
    ["finished", await joined.finished, { state: "closed", text }],
    ["history", messages[0]?.content, { type: 1, content: text }],
    ["history's stream", messages[0]?.stream?.state, "closed"],
  ];
}

/** What belongs to a user: conversations, commands, who is there. */
async function account(world: World): Promise<readonly Fact[]> {
  await makeGroup(world, "acc", ["ann", "paul", "olga"]);
  const ann = await login(world, "ann");
  const laptop = await login(world, "ann");
  const told: unknown[] = [];
  laptop.on("conversation", ({ change, conversation }) => told.push([change, conversation.unread]));
  const commands = new Map<string, string[]>();
  const obey = (name: string, client: Client) => {
    commands.set(name, []);
    client.on("command", async ({ content }) => {
      await pause(1);
      commands.get(name)?.push(String(content?.cmd));
    });
  };
  obey("ann", ann);
  const states: unknown[] = [];
  const unwatch = ann.watchPresence(["olga"], ({ uid, online }) => states.push([uid, online]));

  await produce(world, "acc", numbers(0, 3));
  const before = await ann.conversations();
  const read = await ann.markRead(group("acc"), 2);
  await until(() => told.length === 1);
  const unread = await ann.setUnread(group("acc"), 3);
  await ann.deleteConversation(group("acc"));
  const gone = await ann.conversations();
  await command(world, "acc", "memberUpdate");
  await until(() => commands.get("ann")?.length === 1);
  await until(() => states.length === 1);
  const olga = await login(world, "olga");
  obey("olga", olga);
  await until(() => commands.get("olga")?.length === 1);
  await until(() => states.length === 2);
  const who = await ann.presence(["olga", "nobody"]);
  await olga.close();
  await until(() => states.length === 3);
  unwatch();
  await Promise.all([ann.close(), laptop.close()]);
  const [first] = before.conversations;
  return [
    ["unread", [first?.channel.id, first?.unread], ["acc", 3]],
    ["the last message", textOf(first?.last), "2"],
    ["read", [read.readSeq, read.unread], [2, 1]],
    ["set unread", unread.unread, 3],
    ["told the other device", told[0], ["read", 1]],
    ["deleted", gone.conversations, []],
    ["a command", commands.get("ann"), ["memberUpdate"]],
    ["a command for who was away", commands.get("olga"), ["memberUpdate"]],
    ["presence", who.map((one) => one.online), [true, false]],
    [
      "watched presence",
      states,
      [
        ["olga", false],
        ["olga", true],
        ["olga", false],
      ],
    ],
  ];
}

/** Another main device logs in. */
async function kick(world: World): Promise<readonly Fact[]> {
  const first = await login(world, "kim", { main: true });
  const reasons: string[] = [];
  first.on("kicked", ({ reason, code }) => reasons.push(`${reason} ${code}`));
  const statuses: string[] = [];
  first.on("status", (status) => statuses.push(status));
  const second = await login(world, "kim", { main: true });
  await until(() => first.status === "closed");
  const refused = await codeOf(first.send(person("kim"), "x"));
  const notReady = await codeOf(first.ready());
  await second.send(person("kim"), "still here");
  const stands = second.status;
  await second.close();
  return [
    ["kicked", reasons, ["kicked 4200"]],
    ["never came back", statuses, ["closed"]],
    ["send", refused, "kicked"],
    ["ready", notReady, "kicked"],
    ["the newer one", stands, "online"],
  ];
}

/** kill -9 of the broker; others go on sending as soon as it is back. */
async function restart(world: World): Promise<readonly Fact[]> {
  const uids = ["rita", "paul"];
  await makeGroup(world, "news", uids);
  await makeGroup(world, "fresh", uids);
  let gate = Promise.resolve();
  let open = (): void => undefined;
  const rita = await login(world, "rita", { before: () => gate });
  const heard = listen(rita);
  const say = (channel: string, from: number, to: number) =>
    produce(world, channel, numbers(from, to));
  await say("news", 0, 10);
  await until(() => heard.length === 10);

  gate = new Promise((resolve) => {
    open = resolve;
  });
  await world.kill();
  await until(() => rita.status !== "online");
  const queued = numbers(0, 5).map((n) => rita.send(group("news"), `r${n}`));
  await world.start();
  await say("news", 10, 30);
  await say("fresh", 0, 5); // never seen before: no cursor can name it
  open();
  const receipts = await Promise.all(queued);
  await say("news", 30, 35);
  await until(() => heard.length >= 40);
  const { messages } = await rita.history(group("news"), { limit: 100 });
  await rita.close();
  const order = receipts.map((one) => one.messageSeq);
  const all = messages.map((one) => textOf(one)).reverse();
  return [
    ["one channel", texts(heard, "news"), numbers(0, 35)],
    ["a channel never seen", texts(heard, "fresh"), numbers(0, 5)],
    ["own messages in order", order, [...order].sort((a, b) => a - b)],
    ["nothing twice", all.length, new Set(all).size],
    ["nothing missing", all.length, 40],
  ];
}

/** kill -9 in the middle of a stream; its producer tries until it is back. */
async function restartStream(world: World): Promise<readonly Fact[]> {
  await makeGroup(world, "scene", ["vera"]);
  const vera = await login(world, "vera");
  const stream = producer(world, "scene", "s2");
  await stream.start();
  const seen = await vera.streamOf(group("scene"), "s2");
  const pieces: string[] = [];
  const reading = (async () => {
    for await (const piece of seen) pieces.push(piece);
  })();
  await stream.write(0, 20);
  const writing = stream.write(20, 60);
  await world.kill();
  await world.start();
  await writing;
  await stream.end();
  await reading;
  const again = await vera.streamOf(group("scene"), "s2");
  await vera.close();
  return [
    ["pieces", pieces.join(""), stream.text()],
    ["state", seen.state, "closed"],
    ["as stored", again.text, stream.text()],
  ];
}

/** Logs in with a token of its own; resolves when online. */
async function login(
  { url, post }: World,
  uid: string,
  options: {
    readonly main?: boolean;
    /** Holds up every connect. */
    before?(): Promise<void>;
  } = {},
): Promise<Client> {
  const { main = false, before } = options;
  const device = { uid, token: `${uid}-token`, device_flag: 1 };
  await post("/user/token", { ...device, device_level: main ? 1 : 0 });
  const client = connect({
    url,
    uid,
    token: async () => {
      await before?.();
      return device.token;
    },
    reconnect: { minMs: 50, maxMs: 200 },
  });
  await client.ready();
  return client;
}

async function makeGroup(
  { post }: World,
  id: string,
  subscribers: readonly string[],
): Promise<void> {
  await post("/channel", { channel_id: id, channel_type: 2, subscribers });
}

/** What is pushed from now on, in order. */
function listen(client: Client): ReceivedMessage[] {
  const heard: ReceivedMessage[] = [];
  client.on("message", (message) => heard.push(message));
  return heard;
}

function textOf(message: ReceivedMessage | undefined): unknown {
  return message?.content?.content;
}

function texts(messages: readonly ReceivedMessage[], id: string): unknown[] {
  const inChannel = messages.filter(({ channel }) => channel.id === id);
  return inChannel.map((one) => textOf(one));
}

function numbers(from: number, to: number): string[] {
  return Array.from({ length: to - from }, (_, n) => `${from + n}`);
}

/** Sends as the user paul over HTTP, again and again until it is accepted. */
async function produce(
  world: World,
  channelId: string,
  contents: readonly string[],
): Promise<void> {
  for (const content of contents)
    await insist(world, "/message/send", {
      from_uid: "paul",
      channel_id: channelId,
      channel_type: 2,
      client_msg_no: `${channelId}-${content}`,
      header: { red_dot: 1 },
      payload: btoa(JSON.stringify({ type: 1, content })),
    });
}

async function command(world: World, channelId: string, cmd: string): Promise<void> {
  await insist(world, "/message/send", {
    from_uid: "paul",
    channel_id: channelId,
    channel_type: 2,
    header: { sync_once: 1 },
    payload: btoa(JSON.stringify({ type: 99, cmd, param: {} })),
  });
}

/** A producer of one stream, by events that it may repeat. */
function producer(world: World, channelId: string, clientMsgNo: string) {
  let text = "";
  const event = (type: string, data: string, id: string) =>
    insist(world, "/event", {
      client_msg_no: clientMsgNo,
      channel_id: channelId,
      channel_type: 2,
      event: { type: `___TextMessage${type}`, data, id },
    });
  return {
    text: () => text,
    start: () => event("Start", "", "start"),
    end: () => event("End", "", "end"),
    async write(from: number, to: number) {
      for (let n = from; n < to; n++) {
        await event("Content", `chunk ${n} … 𝄞 `, `e${n}`);
        text += `chunk ${n} … 𝄞 `;
      }
    },
  };
}

async function insist(world: World, path: string, body: object): Promise<void> {
  while ((await world.post(path, body)) !== 200) await pause(20);
}

async function codeOf(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
    return "no error";
  } catch (error) {
    return (error as JindouError).code;
  }
}

async function until(condition: () => boolean): Promise<void> {
  const deadline = Date.now() + 120_000;
  while (!condition() && Date.now() < deadline) await pause(5); // what was not seen then is missing in the facts
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
