// Issue 3, line 4: each user's command is acknowledged once and none is lost, with two devices, an
// offline user, users who come and go, retries of every send, acknowledgements whose replies are
// lost, and kill -9. JINDOU_TEST_ROUNDS raises the kills, JINDOU_TEST_SEED repeats.

import t, { type Test } from "tap";
import { GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { Waiters } from "../support/waiters.ts";
import { CommandDevice } from "./command-device.ts";
import { CommandLedger } from "./command-ledger.ts";
import { Stage } from "./stage.ts";

const ROUNDS = volume(10, "JINDOU_TEST_ROUNDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const PER_ROUND = 120;
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
const stage = await Stage.open(t, { JINDOU_COMMANDS_MAX_INBOX: "100000" });
await stage.createGroup("team", [BOSS, ...USERS]);
let count = 0;
let isDaveIn = true;

const parts = { stage, ledger, random };
const device = (name: string, uid: string) => new CommandDevice(name, uid, parts);
const phone = device("alice's phone", "alice");
const laptop = device("alice's laptop", "alice");
const bob = device("bob's phone", "bob");
const carol = device("carol's phone", "carol");
const dave = device("dave's phone", "dave");

t.test(`commands over ${ROUNDS} kills`, async (t) => {
  const here = [phone.run(true), laptop.run(false), carol.run(true)];
  for (let round = 0; round < ROUNDS; round++) {
    await send(PER_ROUND, round);
    await toggleDave();
  }
  await send(PER_ROUND, undefined);
  here.push(bob.run(false), dave.run(true));
  await allShown();
  for (const one of [phone, laptop, bob, carol, dave]) one.stop();
  await Promise.all(here);
  t.equal(stage.kills, ROUNDS);
  t.equal(ledger.unanswered.length, 0, "every send was answered");
  t.same(ledger.problems.slice(0, 10), []);
});

t.test("what is left is acknowledged, and then nothing is left", async (t) => {
  if (!isDaveIn) await toggleDave();
  const rest = USERS.map((uid) => device(`${uid}'s last device`, uid));
  const runs = rest.map((one) => one.run(false));
  const last = await sendToAll();
  await eventually("the last command's acknowledgements", () =>
    USERS.every((uid) => ledger.isAcknowledged(uid, last)),
  );
  for (const one of rest) one.stop();
  await Promise.all(runs);
  for (const uid of USERS) ledger.judge(uid);
  t.same(ledger.problems.slice(0, 10), []);
  t.comment(`${ledger.sentCount} commands`);
  const clients = await Promise.all(
    USERS.map((uid) => connectNative(t, { uid, port: stage.clientPort })),
  );
  const no = await sendToAll();
  for (const client of clients) await isShownOnly(t, client, no);
  t.notMatch(stage.output(), /"level":"(error|fatal)"/, "no error was logged");
});

/** Its inbox was empty, and the new command leaves it with its acknowledgement. */
async function isShownOnly(t: Test, client: NativeClient, no: string): Promise<void> {
  const push = await client.nextPush(({ kind }) => kind === "command");
  if (push.kind !== "command") throw new Error("filtered");
  t.equal(push.message.clientMsgNo, no, `${client.uid} is shown only that`);
  const inboxSeqs = [push.inboxSeq];
  const operation = { kind: "commandack", inboxSeqs } as const;
  t.equal((await client.request("commandack", operation)).count, 1);
  t.equal((await client.request("commandack", operation)).count, 0);
}

/** Resolves with the number of a command to everybody in the group. */
async function sendToAll(): Promise<string> {
  const command = draft(0, TO_ALL);
  ledger.sent(command.no, command.recipients, command);
  await deliver(command);
  return command.no;
}

/**
 * Several senders at once; the broker is killed somewhere among it, unless `round` is undefined.
 */
async function send(commands: number, round: number | undefined): Promise<void> {
  let left = commands;
  const killAt = round === undefined ? -1 : random.below(commands - 20) + 10;
  let restart: Promise<void> | undefined;
  const sender = async (at: number) => {
    while (left > 0) {
      left -= 1;
      if (left === killAt) restart = stage.restart();
      await sendOne(at);
    }
  };
  await Promise.all(Array.from({ length: SENDERS }, (_, at) => sender(at)));
  await restart;
}

/** One command, now and then twice at once, and again some time after its answer. */
async function sendOne(at: number): Promise<void> {
  const command = draft(at);
  ledger.sent(command.no, command.recipients, command);
  const copies = random.below(6) === 0 ? 2 : 1;
  await Promise.all(Array.from({ length: copies }, () => deliver(command)));
  if (random.below(4) === 0) await deliver(command);
}

async function deliver({ no, body }: Command): Promise<void> {
  const answer = await stage.ok("/message/send", body);
  ledger.answered(no, answer.message_id, answer.message_seq);
}

/** `kind`: to one user, to listed members, or to all members. */
function draft(at: number, kind = random.below(4)): Command {
  count += 1;
  const no = `c-${at}-${count}`;
  const members = USERS.filter((uid) => uid !== "dave" || isDaveIn);
  const fromUid = kind === TO_ALL ? BOSS : random.pick([BOSS, "carol"]);
  const to = random.pick(["alice", "bob"] as const);
  const listed = ["alice", "stranger", "dave"];
  const isPerson = kind === TO_ONE;
  const isListed = kind === TO_LISTED;
  const recipients = isPerson
    ? [to]
    : members.filter((uid) => (isListed ? listed.includes(uid) : uid !== fromUid));
  const content = { type: 99, cmd: "memberUpdate", param: { no } };
  const signal = { type: 1001, content: no, extra: [] };
  const isSignal = random.flip();
  const payload = JSON.stringify(isSignal ? signal : content);
  const body = {
    channel_id: isPerson ? to : "team",
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
  const path = isDaveIn ? "/channel/subscriber_remove" : "/channel/subscriber_add";
  const channel = { channel_id: "team", channel_type: GROUP_CHANNEL };
  await stage.ok(path, { ...channel, subscribers: ["dave"] });
  isDaveIn = !isDaveIn;
}

function allShown(): Promise<void> {
  return eventually("all commands shown", () => USERS.every((uid) => ledger.hasAll(uid)));
}

async function eventually(what: string, holds: () => boolean): Promise<void> {
  const waiters = new Waiters(TIMEOUT_MS);
  const look = setInterval(() => waiters.check(), 10);
  try {
    await waiters.until(what, holds);
  } finally {
    clearInterval(look);
  }
}
