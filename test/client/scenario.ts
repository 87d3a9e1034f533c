// Scenarios of an app that uses the SDK. They run in Node and in a browser. This module imports
// only the SDK. Each scenario returns pairs of observed and expected values, and the test
// compares them.

import {
  type Client,
  connect,
  group,
  type JindouError,
  person,
  type ReceivedMessage,
  type StreamRecord,
} from "../../src/client/index.ts";

/** The broker, as a scenario accesses it. */
export interface World {
  readonly url: string;
  /**
   * Sends a POST as a backend would. Resolves with the status, or 0 if the broker is not running.
   */
  post(path: string, body: object): Promise<number>;
  /** Returns the path of a stream with a signature. */
  sign(path: string, access: "read" | "write"): Promise<string>;
  /** Ends the broker process with SIGKILL. */
  kill(): Promise<void>;
  /** Starts the broker again on the same ports and data. Resolves when it is ready. */
  start(): Promise<void>;
}

/** A description of a fact, its observed value and its expected value. */
export type Fact = readonly [description: string, actual: unknown, expected: unknown];

type Scenario = (world: World) => Promise<readonly Fact[]>;

export type ScenarioName = keyof typeof SCENARIOS;

export const SCENARIOS = {
  talk,
  follow,
  account,
  typing,
  kick,
  restart,
  restartStream,
  records,
} satisfies Record<string, Scenario>;

/** Two users connect, send and receive messages, and read history. */
async function talk(world: World): Promise<readonly Fact[]> {
  const alice = await login(world, "alice");
  const bob = await login(world, "bob");
  await createGroup(world, "talk", ["alice", "bob"]);
  const received = listen(bob);
  const acks = await Promise.all([
    alice.send(group("talk"), "one", { clientMsgNo: "c1" }),
    alice.send(group("talk"), "two"),
    alice.send(group("talk"), { type: 4, url: "voice", timeTrad: 3 }),
  ]);
  const repeated = await alice.send(group("talk"), "one", {
    clientMsgNo: "c1",
  });
  await alice.send(person("bob"), "psst");
  await until(() => received.length === 4);
  const atSender = listen(alice);
  for (const content of ["three", "four"])
    await postUntilAccepted(world, "/message/send", {
      from_uid: "alice",
      ...{ channel_id: "talk", channel_type: 2 },
      payload: btoa(JSON.stringify({ type: 1, content })),
    });
  await until(() => received.length === 6 && atSender.length === 2);
  const createdMsgNos = received.slice(4).map(({ clientMsgNo }) => clientMsgNo);
  const { messages, headSeq } = await bob.history(group("talk"));
  const refused = await codeOf(alice.send(group("elsewhere"), "x"));
  await Promise.all([alice.close(), bob.close()]);
  return [
    ["the seqs of the sent messages", acks.map(({ messageSeq }) => messageSeq), [1, 2, 3]],
    ["a repeated clientMsgNo returns the first message", repeated, acks[0]],
    ["messages in the group", texts(received, "talk"), ["one", "two", undefined, "three", "four"]],
    ["messages in the personal channel", texts(received, "alice"), ["psst"]],
    ["the seqs in history", messages.map(({ messageSeq }) => messageSeq), [5, 4, 3, 2, 1]],
    ["the newest seq of the channel", headSeq, 5],
    ["the server creates a clientMsgNo for each message", new Set(createdMsgNos).size, 2],
    [
      "the sender gets the same clientMsgNo",
      atSender.map(({ clientMsgNo }) => clientMsgNo),
      createdMsgNos,
    ],
    [
      "history has the same clientMsgNo",
      messages.slice(0, 2).map(({ clientMsgNo }) => clientMsgNo),
      [...createdMsgNos].reverse(),
    ],
    ["a send without membership is refused", refused, "not_subscriber"],
    ["the status after close", [alice.status, bob.status], ["closed", "closed"]],
  ];
}

/** Users read a stream from its beginning, from its middle, and after its end. */
async function follow(world: World): Promise<readonly Fact[]> {
  await createGroup(world, "show", ["early", "late"]);
  const early = await login(world, "early");
  const textFromStart = new Promise<string>((resolve) => {
    early.on("message", async (message) => {
      let text = "";
      for await (const piece of early.stream(message)) text += piece;
      resolve(text);
    });
  });
  const stream = producer(world, "show", "s1");
  await stream.start();
  await stream.write(0, 20);
  const late = await login(world, "late");
  const lateStream = late.stream({ channel: group("show"), clientMsgNo: "s1" });
  const { text: textAtJoin } = await lateStream.ready();
  const laterPieces: string[] = [];
  const reading = (async () => {
    for await (const piece of lateStream.pieces("now")) laterPieces.push(piece);
  })();
  await stream.write(20, 40);
  await stream.end();
  await reading;
  const { messages } = await late.history(group("show"));
  const text = stream.text();
  await Promise.all([early.close(), late.close()]);
  return [
    ["the text read from the beginning", await textFromStart, text],
    ["the text read from the middle", textAtJoin + laterPieces.join(""), text],
    ["the text of the stream", lateStream.snapshot().text, text],
    ["the final state", (await lateStream.finished).state, "closed"],
    ["the message in history", messages[0]?.content, { type: 1, content: text }],
    ["the state of the stream in history", messages[0]?.stream?.state, "closed"],
  ];
}

/** A user reads conversations, commands and the presence of others. */
async function account(world: World): Promise<readonly Fact[]> {
  await createGroup(world, "acc", ["ann", "paul", "olga"]);
  const ann = await login(world, "ann");
  const laptop = await login(world, "ann");
  const changes: unknown[] = [];
  laptop.on("conversation", ({ change, conversation }) =>
    changes.push([change, conversation.unread]),
  );
  const commands = new Map<string, string[]>();
  const recordCommands = (name: string, client: Client) => {
    commands.set(name, []);
    client.on("command", async ({ content }) => {
      await pause(1);
      commands.get(name)?.push(String(content?.cmd));
    });
  };
  recordCommands("ann", ann);
  const states: unknown[] = [];
  const unwatch = ann.watchPresence(["olga"], ({ uid, online }) => states.push([uid, online]));

  await sendAsPaul(world, "acc", numbers(0, 3));
  const firstPage = await ann.conversations();
  const read = await ann.markRead(group("acc"), 2);
  await until(() => changes.length === 1);
  const unread = await ann.setUnread(group("acc"), 3);
  await ann.deleteConversation(group("acc"));
  const afterDelete = await ann.conversations();
  await sendCommand(world, "acc", "memberUpdate");
  await until(() => commands.get("ann")?.length === 1);
  await until(() => states.length === 1);
  const olga = await login(world, "olga");
  recordCommands("olga", olga);
  await until(() => commands.get("olga")?.length === 1);
  await until(() => states.length === 2);
  const presence = await ann.presence(["olga", "nobody"]);
  await olga.close();
  await until(() => states.length === 3);
  unwatch();
  await Promise.all([ann.close(), laptop.close()]);
  const [first] = firstPage.conversations;
  return [
    ["unread messages", [first?.channel.id, first?.unread], ["acc", 3]],
    ["the last message of the conversation", textOf(first?.last), "2"],
    ["after markRead", [read.readSeq, read.unread], [2, 1]],
    ["after setUnread", unread.unread, 3],
    ["the event at the user's other device", changes[0], ["read", 1]],
    ["conversations after the deletion", afterDelete.conversations, []],
    ["a command for a user who was online", commands.get("ann"), ["memberUpdate"]],
    ["a command for a user who was offline", commands.get("olga"), ["memberUpdate"]],
    [
      "the presence of an online and of an unknown user",
      presence.map(({ online }) => online),
      [true, false],
    ],
    [
      "the presence reported to a watch",
      states,
      [
        ["olga", false],
        ["olga", true],
        ["olga", false],
      ],
    ],
  ];
}

/** Two users send each other events, and see when the other one is typing. */
async function typing(world: World): Promise<readonly Fact[]> {
  const tina = await login(world, "tina");
  const theo = await login(world, "theo");
  await createGroup(world, "pad", ["tina", "theo"]);
  const pad = group("pad");
  const events: unknown[] = [];
  const changes: unknown[] = [];
  theo.on("event", ({ channel, fromUid, clientMsgNo, type, data }) =>
    events.push([channel.id, fromUid, clientMsgNo, type, data]),
  );
  theo.on("typing", ({ channel, uid, isTyping }) => changes.push([channel.id, uid, isTyping]));
  const echoes: unknown[] = [];
  for (const event of ["event", "typing"] as const) tina.on(event, (value) => echoes.push(value));

  await tina.emit(pad, "cursor", '{"line":3}');
  for (let key = 0; key < 5; key++) tina.typing(pad);
  await until(() => changes.length === 1);
  await tina.send(pad, "done");
  await until(() => changes.length === 2);
  tina.typing(pad);
  await until(() => changes.length === 3);
  tina.typing(pad, false);
  await until(() => changes.length === 4);
  tina.typing(person("theo"));
  await until(() => changes.length === 5);
  const refusals = [
    await codeOf(tina.emit(group("elsewhere"), "typing")),
    await codeOf(tina.emit(pad, "___TextMessageStart")),
    await codeOf(tina.emit(pad, "x", "d".repeat(4097))),
  ];
  await Promise.all([tina.close(), theo.close()]);
  refusals.push(await codeOf(tina.emit(pad, "late")));
  return [
    [
      "events of the other client",
      events,
      [
        ["pad", "tina", "", "cursor", '{"line":3}'],
        ["pad", "tina", "", "typing", ""],
        ["pad", "tina", "", "typing", ""],
        ["pad", "tina", "", "typing", "stop"],
        ["tina", "tina", "", "typing", ""],
      ],
    ],
    [
      "who is typing",
      changes,
      [
        ["pad", "tina", true],
        ["pad", "tina", false],
        ["pad", "tina", true],
        ["pad", "tina", false],
        ["tina", "tina", true],
      ],
    ],
    ["the sender gets no events of its own", echoes, []],
    ["refused events", refusals, ["not_subscriber", "bad_request", "too_large", "closed"]],
  ];
}

/** A second main device of a user logs in and ends the session of the first. */
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
  const status = second.status;
  await second.close();
  return [
    ["the kicked event", reasons, ["kicked 4200"]],
    ["the old client does not reconnect", statuses, ["closed"]],
    ["a send of the old client is rejected", refused, "kicked"],
    ["ready of the old client is rejected", notReady, "kicked"],
    ["the new client stays online", status, "online"],
  ];
}

/** The broker is killed, and another user sends messages as soon as it is running again. */
async function restart(world: World): Promise<readonly Fact[]> {
  const uids = ["rita", "paul"];
  await createGroup(world, "news", uids);
  await createGroup(world, "fresh", uids);
  let gate = Promise.resolve();
  let open = (): void => undefined;
  const rita = await login(world, "rita", { beforeConnect: () => gate });
  const received = listen(rita);
  const send = (channel: string, from: number, to: number) =>
    sendAsPaul(world, channel, numbers(from, to));
  await send("news", 0, 10);
  await until(() => received.length === 10);

  gate = new Promise((resolve) => {
    open = resolve;
  });
  await world.kill();
  await until(() => rita.status !== "online");
  const queued = numbers(0, 5).map((n) => rita.send(group("news"), `r${n}`));
  await world.start();
  await send("news", 10, 30);
  await send("fresh", 0, 5); // the client has no cursor for this channel
  open();
  const acks = await Promise.all(queued);
  await send("news", 30, 35);
  await until(() => received.length >= 40);
  const { messages } = await rita.history(group("news"), { limit: 100 });
  await rita.close();
  const order = acks.map(({ messageSeq }) => messageSeq);
  const all = messages.map((message) => textOf(message)).reverse();
  return [
    ["messages of a channel with a cursor", texts(received, "news"), numbers(0, 35)],
    ["messages of a channel without a cursor", texts(received, "fresh"), numbers(0, 5)],
    ["the client's own messages keep their order", order, [...order].sort((a, b) => a - b)],
    ["no message is stored twice", all.length, new Set(all).size],
    ["no message is missing", all.length, 40],
  ];
}

/**
 * The broker is killed in the middle of a stream. The producer repeats its events until the broker
 * is running again.
 */
async function restartStream(world: World): Promise<readonly Fact[]> {
  await createGroup(world, "scene", ["vera"]);
  const vera = await login(world, "vera");
  const stream = producer(world, "scene", "s2");
  await stream.start();
  const target = { channel: group("scene"), clientMsgNo: "s2" };
  const watched = vera.stream(target);
  const pieces: string[] = [];
  const reading = (async () => {
    for await (const piece of watched) pieces.push(piece);
  })();
  await stream.write(0, 20);
  const writing = stream.write(20, 60);
  await world.kill();
  await world.start();
  await writing;
  await stream.end();
  await reading;
  const reread = await vera.stream(target).finished;
  await vera.close();
  return [
    ["the text read in pieces", pieces.join(""), stream.text()],
    ["the final state", watched.snapshot().state, "closed"],
    ["the stored text", reread.text, stream.text()],
  ];
}

/** A user reads and writes a durable stream while the broker is killed and started again. */
async function records(world: World): Promise<readonly Fact[]> {
  const rosa = await login(world, "rosa");
  const path = await world.sign("/v1/stream/scene/records", "write");
  const headers = { "content-type": "application/json" };
  await fetch(world.url.replace("ws", "http") + path, { method: "PUT", headers });
  const written = rosa.stream<string>(path, { producer: "rosa" });
  const received: StreamRecord<string>[] = [];
  const reading = (async () => {
    for await (const record of rosa.stream<string>(path)) received.push(record);
  })();
  const append = (from: number, to: number) =>
    Promise.all(numbers(from, to).map((number) => written.append(number)));
  await append(0, 20);
  await until(() => received.length === 20);
  const appending = append(20, 60);
  await world.kill();
  await world.start();
  await appending;
  await written.close();
  await reading;
  const rest: string[] = [];
  for await (const { data } of rosa.stream<string>(path).records(received[30]?.offset))
    rest.push(data);
  const isRestarted = received.some(({ restarted }) => restarted);
  const firstOf = (target: string) => codeOf(rosa.stream(target).records().next());
  const refusals = [
    await codeOf(written.append("late")),
    await firstOf(await world.sign("/v1/stream/scene/missing", "read")),
    await firstOf("/v1/stream/scene/records"),
  ];
  await rosa.close();
  return [
    ["each record is read once and in order", received.map(({ data }) => data), numbers(0, 60)],
    ["reading did not begin again", isRestarted, false],
    ["the records after the offset of a record", rest, numbers(31, 60)],
    ["refused calls", refusals, ["stream_ended", "stream_unknown", "forbidden"]],
  ];
}

/** Registers a token for the user and logs in with it. Resolves when the client is online. */
async function login(
  { url, post }: World,
  uid: string,
  options: {
    readonly main?: boolean;
    /** Delays each connection attempt until the returned promise resolves. */
    beforeConnect?(): Promise<void>;
  } = {},
): Promise<Client> {
  const { main = false, beforeConnect } = options;
  const device = { uid, token: `${uid}-token`, device_flag: 1 };
  await post("/user/token", { ...device, device_level: main ? 1 : 0 });
  const client = connect({
    url,
    uid,
    token: async () => {
      await beforeConnect?.();
      return device.token;
    },
    reconnect: { minMs: 50, maxMs: 200 },
  });
  await client.ready();
  return client;
}

async function createGroup(
  { post }: World,
  id: string,
  subscribers: readonly string[],
): Promise<void> {
  await post("/channel", { channel_id: id, channel_type: 2, subscribers });
}

/** Returns a list to which each further message of the client is appended. */
function listen(client: Client): ReceivedMessage[] {
  const received: ReceivedMessage[] = [];
  client.on("message", (message) => received.push(message));
  return received;
}

function textOf(message: ReceivedMessage | undefined): unknown {
  return message?.content?.content;
}

function texts(messages: readonly ReceivedMessage[], id: string): unknown[] {
  const inChannel = messages.filter(({ channel }) => channel.id === id);
  return inChannel.map((message) => textOf(message));
}

function numbers(from: number, to: number): string[] {
  return Array.from({ length: to - from }, (_, n) => `${from + n}`);
}

/** Sends messages as the user paul over HTTP. Repeats each until it is accepted. */
async function sendAsPaul(
  world: World,
  channelId: string,
  contents: readonly string[],
): Promise<void> {
  for (const content of contents)
    await postUntilAccepted(world, "/message/send", {
      from_uid: "paul",
      channel_id: channelId,
      channel_type: 2,
      client_msg_no: `${channelId}-${content}`,
      header: { red_dot: 1 },
      payload: btoa(JSON.stringify({ type: 1, content })),
    });
}

/** Sends a command as the user paul. */
async function sendCommand(world: World, channelId: string, cmd: string): Promise<void> {
  await postUntilAccepted(world, "/message/send", {
    from_uid: "paul",
    channel_id: channelId,
    channel_type: 2,
    header: { sync_once: 1 },
    payload: btoa(JSON.stringify({ type: 99, cmd, param: {} })),
  });
}

/**
 * Returns a producer of one stream. The producer repeats each event until the broker accepts it.
 */
function producer(world: World, channelId: string, clientMsgNo: string) {
  let text = "";
  const event = (type: string, data: string, id: string) =>
    postUntilAccepted(world, "/event", {
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

/** Sends a POST and repeats it until it succeeds. */
async function postUntilAccepted(world: World, path: string, body: object): Promise<void> {
  while ((await world.post(path, body)) !== 200) await pause(20);
}

/** Returns the error code with which the promise rejects. */
async function codeOf(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
    return "no error";
  } catch (error) {
    return (error as JindouError).code;
  }
}

/**
 * Waits until the condition holds. After two minutes it returns anyway, and the missing value shows
 * in the facts.
 */
async function until(condition: () => boolean): Promise<void> {
  const deadline = Date.now() + 120_000;
  while (!condition() && Date.now() < deadline) await pause(5);
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
