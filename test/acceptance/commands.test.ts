// Commands to two devices, an offline user and members that join and leave, with retries of every
// send, lost replies to acknowledgements, and SIGKILL: no command is lost, and the server counts
// the acknowledgement of each user's copy once. JINDOU_TEST_ROUNDS sets the number of kills, and
// JINDOU_TEST_SEED repeats a run.

import t, { type Test } from "tap";
import { GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { Waiters } from "../support/waiters.ts";
import { CommandDevice } from "./command-device.ts";
import { CommandLedger } from "./command-ledger.ts";
import { RestartableBroker } from "./restartable-broker.ts";

const ROUNDS = volume(10, "JINDOU_TEST_ROUNDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const COMMANDS_PER_ROUND = 120;
const SENDERS = 4;
const TIMEOUT_MS = 120_000;

const BOSS = "boss";
const TO_ONE = 0;
const TO_LISTED = 1;
const TO_ALL = 2;
const USERS = ["alice", "bob", "carol", "dave"];

t.comment(`seed ${SEED}`);

interface Command {
  readonly no: string;
  readonly recipients: readonly string[];
  readonly body: object;
}

const random = new Random(SEED);
const ledger = new CommandLedger();
const broker = await RestartableBroker.open(t, { JINDOU_COMMANDS_MAX_INBOX: "100000" });
await broker.createGroup("team", [BOSS, ...USERS]);
let count = 0;
let isDaveMember = true;

const context = { broker, ledger, random };
const device = (name: string, uid: string) => new CommandDevice(name, uid, context);
const phone = device("alice's phone", "alice");
const laptop = device("alice's laptop", "alice");
const bob = device("bob's phone", "bob");
const carol = device("carol's phone", "carol");
const dave = device("dave's phone", "dave");

t.test(`no command is lost or shown twice when the broker is killed ${ROUNDS} times`, async (t) => {
  const runs = [phone.run(true), laptop.run(false), carol.run(true)];
  for (let round = 0; round < ROUNDS; round++) {
    await send(COMMANDS_PER_ROUND, round);
    await toggleDave();
  }
  await send(COMMANDS_PER_ROUND, undefined);
  runs.push(bob.run(false), dave.run(true));
  await allShown();
  for (const target of [phone, laptop, bob, carol, dave]) target.stop();
  await Promise.all(runs);
  t.equal(broker.kills, ROUNDS);
  t.equal(ledger.unanswered.length, 0, "every send was answered");
  t.same(ledger.problems.slice(0, 10), []);
});

t.test(
  "every command can be acknowledged, and an acknowledged command is not pushed again",
  async (t) => {
    if (!isDaveMember) await toggleDave();
    const lastDevices = USERS.map((uid) => device(`${uid}'s last device`, uid));
    const runs = lastDevices.map((lastDevice) => lastDevice.run(false));
    const last = await sendToAll();
    await eventually("every user has acknowledged the last command", () =>
      USERS.every((uid) => ledger.isAcknowledged(uid, last)),
    );
    for (const lastDevice of lastDevices) lastDevice.stop();
    await Promise.all(runs);
    for (const uid of USERS) ledger.check(uid);
    t.same(ledger.problems.slice(0, 10), []);
    t.comment(`${ledger.sentCount} commands`);
    const clients = await Promise.all(
      USERS.map((uid) => connectNative(t, { uid, port: broker.clientPort })),
    );
    const no = await sendToAll();
    for (const client of clients) await assertOnlyCommand(t, client, no);
    t.notMatch(broker.output(), /"level":"(error|fatal)"/, "no error was logged");
  },
);

/**
 * Asserts that the client is pushed only this command, and that the command can be acknowledged
 * exactly once.
 */
async function assertOnlyCommand(t: Test, client: NativeClient, no: string): Promise<void> {
  const push = await client.nextPush(({ kind }) => kind === "command");
  if (push.kind !== "command") throw new Error("expected a command");
  t.equal(push.message.clientMsgNo, no, `${client.uid} is shown only the new command`);
  const inboxSeqs = [push.inboxSeq];
  const operation = { kind: "commandack", inboxSeqs } as const;
  t.equal((await client.request("commandack", operation)).count, 1);
  t.equal((await client.request("commandack", operation)).count, 0);
}

/** Sends a command to every member of the group. Returns its `clientMsgNo`. */
async function sendToAll(): Promise<string> {
  const command = draft(0, TO_ALL);
  ledger.sent(command.no, command.recipients, command);
  await deliver(command);
  return command.no;
}

/**
 * Sends the commands with several senders at once. Unless `round` is `undefined`, kills the broker
 * at a random moment while they send.
 */
async function send(commands: number, round: number | undefined): Promise<void> {
  let remaining = commands;
  const killAt = round === undefined ? -1 : random.below(commands - 20) + 10;
  let restart: Promise<void> | undefined;
  const sender = async (at: number) => {
    while (remaining > 0) {
      remaining -= 1;
      if (remaining === killAt) restart = broker.restart();
      await sendOne(at);
    }
  };
  await Promise.all(Array.from({ length: SENDERS }, (_, at) => sender(at)));
  await restart;
}

/**
 * Sends one command. Sometimes it is sent twice at once, and sometimes again after it was answered.
 */
async function sendOne(at: number): Promise<void> {
  const command = draft(at);
  ledger.sent(command.no, command.recipients, command);
  const copies = random.below(6) === 0 ? 2 : 1;
  await Promise.all(Array.from({ length: copies }, () => deliver(command)));
  if (random.below(4) === 0) await deliver(command);
}

async function deliver({ no, body }: Command): Promise<void> {
  const response = await broker.ok("/message/send", body);
  ledger.answered(no, response.message_id, response.message_seq);
}

/** Creates a command to one user, to listed members, or to all members, depending on `kind`. */
function draft(at: number, kind = random.below(4)): Command {
  count += 1;
  const no = `c-${at}-${count}`;
  const members = USERS.filter((uid) => uid !== "dave" || isDaveMember);
  const fromUid = kind === TO_ALL ? BOSS : random.pick([BOSS, "carol"]);
  const receiver = random.pick(["alice", "bob"] as const);
  const listed = ["alice", "stranger", "dave"];
  const isPerson = kind === TO_ONE;
  const isListed = kind === TO_LISTED;
  const recipients = isPerson
    ? [receiver]
    : members.filter((uid) => (isListed ? listed.includes(uid) : uid !== fromUid));
  const content = { type: 99, cmd: "memberUpdate", param: { no } };
  const signal = { type: 1001, content: no, extra: [] };
  const isSignal = random.flip();
  const payload = JSON.stringify(isSignal ? signal : content);
  const body = {
    channel_id: isPerson ? receiver : "team",
    channel_type: isPerson ? PERSON_CHANNEL : GROUP_CHANNEL,
    from_uid: fromUid,
    client_msg_no: no,
    header: { no_persist: 0, red_dot: 0, sync_once: 1 },
    payload: Buffer.from(payload).toString("base64"),
    ...(isListed ? { subscribers: listed } : {}),
  };
  return { no, recipients, body };
}

async function toggleDave(): Promise<void> {
  const path = isDaveMember ? "/channel/subscriber_remove" : "/channel/subscriber_add";
  const channel = { channel_id: "team", channel_type: GROUP_CHANNEL };
  await broker.ok(path, { ...channel, subscribers: ["dave"] });
  isDaveMember = !isDaveMember;
}

function allShown(): Promise<void> {
  return eventually("all commands are shown", () => USERS.every((uid) => ledger.hasAll(uid)));
}

async function eventually(condition: string, holds: () => boolean): Promise<void> {
  const waiters = new Waiters(TIMEOUT_MS);
  const timer = setInterval(() => waiters.check(), 10);
  try {
    await waiters.until(condition, holds);
  } finally {
    clearInterval(timer);
  }
}
