// The history checker finds what it is there to find: losses, gaps, repeats, other orders, changed
// numbers.

import {
  type Acknowledgement,
  HistoryChecker,
  liveRange,
  type ObservedMessage,
  type ObservedRange,
  type ProblemKind,
  Reader,
  type SentMessage,
} from "./history-checker.ts";
import { t } from "./suite.ts";

const KEY = "2:team";
const SENT_MS = 1_000_000;
const ACKED_MS = SENT_MS + 10;

function sending(no: number, changes: Partial<SentMessage> = {}): SentMessage {
  const clientMsgNo = `m${no}`;
  const names = { key: KEY, fromUid: "ann", clientMsgNo, text: `text ${no}` };
  return { ...names, noPersist: false, expireS: 0, ...changes };
}

const ackOf = (seq: number): Acknowledgement => ({
  messageId: 100 + seq,
  messageSeq: seq,
});

/** Message `no` as a sound broker shows it. */
function shown(no: number, changes: Partial<ObservedMessage> = {}): ObservedMessage {
  const { fromUid, clientMsgNo, text } = sending(no);
  return { fromUid, clientMsgNo, text, ...ackOf(no), ...changes };
}

/** A checker that saw five messages sent and acknowledged, with what differs. */
function checkerOfFive(changes: Partial<SentMessage> = {}): HistoryChecker {
  const checker = new HistoryChecker();
  for (const no of [1, 2, 3, 4, 5]) {
    const message = sending(no, no === 3 ? changes : {});
    checker.recordSend(message, SENT_MS);
    const ack = ackOf(no);
    checker.recordAcknowledgement(
      message,
      message.noPersist ? { ...ack, messageSeq: 0 } : ack,
      ACKED_MS,
    );
  }
  return checker;
}

const whole = (...messages: ObservedMessage[]): ObservedRange => ({
  afterSeq: 0,
  throughSeq: 5,
  messages,
  readEndedAtMs: ACKED_MS,
});

function kindsOf(checker: HistoryChecker, ...runs: ObservedRange[]): ProblemKind[] {
  const reader = new Reader("history", KEY);
  for (const run of runs) checker.checkRange(reader, run);
  checker.checkEnd(reader);
  return checker.problems.map(({ kind }) => kind);
}

t.test("a sound history, in one run, in pieces and live, has no problem", (t) => {
  const all = [1, 2, 3, 4, 5].map((no) => shown(no));
  t.same(kindsOf(checkerOfFive(), whole(...all)), []);
  const first: ObservedRange = { ...whole(...all.slice(0, 2)), throughSeq: 2 };
  const rest: ObservedRange = { ...whole(...all.slice(2)), afterSeq: 2 };
  t.same(kindsOf(checkerOfFive(), first, rest), []);
  const live = all.map((message) => liveRange(message, ACKED_MS));
  t.same(kindsOf(checkerOfFive(), ...live), []);
  t.equal(checkerOfFive().acknowledgedCount, 5);
  t.end();
});

t.test("an acknowledged message that is missing inside is lost", (t) => {
  const run = whole(shown(1), shown(2), shown(4), shown(5));
  t.same(kindsOf(checkerOfFive(), run), ["lost"]);
  t.end();
});

t.test("acknowledged messages beyond the end are lost", (t) => {
  const run = { ...whole(shown(1), shown(2), shown(3)), throughSeq: 3 };
  t.same(kindsOf(checkerOfFive(), run), ["lost", "lost"]);
  t.end();
});

t.test("a seq that nobody was told of and that is empty is a gap", (t) => {
  const checker = checkerOfFive();
  const late = sending(7);
  checker.recordSend(late, SENT_MS);
  checker.recordAcknowledgement(late, ackOf(7), ACKED_MS);
  const all = [1, 2, 3, 4, 5, 7].map((no) => shown(no));
  t.same(kindsOf(checker, { ...whole(...all), throughSeq: 7 }), ["gap"]);
  t.end();
});

t.test("a live message that skips one is a gap, whoever was told of that one", (t) => {
  const checker = checkerOfFive();
  const reader = new Reader("bob", KEY, 3);
  checker.checkRange(reader, liveRange(shown(5), ACKED_MS));
  t.same(
    checker.problems.map(({ kind }) => kind),
    ["gap"],
  );
  t.end();
});

t.test("a message shown twice is a repeat", (t) => {
  const twice = [shown(1), shown(2), shown(2), shown(3), shown(4), shown(5)];
  t.same(kindsOf(checkerOfFive(), whole(...twice)), ["repeat"]);
  const all = whole(...[1, 2, 3, 4, 5].map((no) => shown(no)));
  const again = liveRange(shown(5), ACKED_MS);
  t.same(kindsOf(checkerOfFive(), all, again), ["repeat"]);
  t.end();
});

t.test("an earlier message after a later one is a reorder", (t) => {
  const swapped = [shown(1), shown(3), shown(2), shown(4), shown(5)];
  t.same(kindsOf(checkerOfFive(), whole(...swapped)), ["reorder"]);
  const live = [1, 2, 4, 3, 5].map((no) => liveRange(shown(no), ACKED_MS));
  t.ok(kindsOf(checkerOfFive(), ...live).includes("reorder"));
  t.end();
});

t.test("a smaller id at a greater seq is a reorder", (t) => {
  const checker = new HistoryChecker();
  const ids = [20, 10];
  const messages = ids.map((messageId, i) => {
    const ack = { messageId, messageSeq: i + 1 };
    checker.recordSend(sending(i), SENT_MS);
    checker.recordAcknowledgement(sending(i), ack, ACKED_MS);
    return shown(i, ack);
  });
  const run = { ...whole(...messages), throughSeq: 2 };
  t.same(kindsOf(checker, run), ["reorder"]);
  t.end();
});

t.test("an acknowledgement that differs from the first is a change", (t) => {
  for (const ack of [
    { ...ackOf(2), messageSeq: 9 },
    { ...ackOf(2), messageId: 9 },
  ]) {
    const checker = checkerOfFive();
    checker.recordAcknowledgement(sending(2), ack, ACKED_MS);
    t.same(
      checker.problems.map(({ kind }) => kind),
      ["changed"],
    );
  }
  const same = checkerOfFive();
  same.recordAcknowledgement(sending(2), ackOf(2), ACKED_MS);
  t.same(same.problems, []);
  t.end();
});

t.test("one seq acknowledged for two messages is a repeat", (t) => {
  const checker = checkerOfFive();
  checker.recordSend(sending(6), SENT_MS);
  checker.recordAcknowledgement(sending(6), ackOf(5), ACKED_MS);
  t.same(
    checker.problems.map(({ kind }) => kind),
    ["repeat"],
  );
  t.end();
});

t.test("content or id other than was acknowledged is a change", (t) => {
  const rest = [shown(1), shown(2), shown(4), shown(5)];
  for (const changes of [{ text: "other" }, { messageId: 102.5 }]) {
    const messages = [...rest, shown(3, changes)];
    messages.sort((a, b) => a.messageSeq - b.messageSeq);
    t.same(kindsOf(checkerOfFive(), whole(...messages)), ["changed"]);
  }
  t.end();
});

t.test("a clientMsgNo at a second place is a duplicate", (t) => {
  const messages = [1, 2, 3, 4, 5].map((no) => shown(no));
  const copy = shown(2, ackOf(6));
  const run = { ...whole(...messages, copy), throughSeq: 6 };
  t.same(kindsOf(checkerOfFive(), run), ["duplicate"]);
  t.end();
});

t.test("a message nobody sent is unknown", (t) => {
  const messages = [1, 2, 3, 4, 5, 6].map((no) => shown(no));
  const run = { ...whole(...messages), throughSeq: 6 };
  t.ok(kindsOf(checkerOfFive(), run).includes("unknown"));
  t.end();
});

t.test("an expired message may be missing, and must be once it is over", (t) => {
  const checker = () => checkerOfFive({ expireS: 1 });
  const without = whole(shown(1), shown(2), shown(4), shown(5));
  t.same(kindsOf(checker(), { ...without, readEndedAtMs: SENT_MS + 999 }), ["lost"]);
  t.same(kindsOf(checker(), { ...without, readEndedAtMs: SENT_MS + 1000 }), []);
  const all = whole(...[1, 2, 3, 4, 5].map((no) => shown(no)));
  const readEndedAtMs = ACKED_MS + 5000;
  const early = { ...all, readEndedAtMs, readStartedAtMs: ACKED_MS + 999 };
  t.same(kindsOf(checker(), early), []);
  const late = { ...all, readEndedAtMs, readStartedAtMs: ACKED_MS + 1000 };
  t.same(kindsOf(checker(), late), ["expired"]);
  t.end();
});

t.test("a message that is not to be stored has no place and comes once", (t) => {
  const checker = new HistoryChecker();
  const unstored = sending(1, { noPersist: true });
  checker.recordSend(unstored, SENT_MS);
  const ack = { messageId: 101, messageSeq: 0 };
  checker.recordAcknowledgement(unstored, ack, ACKED_MS);
  const reader = new Reader("bob", KEY);
  checker.checkRange(reader, liveRange(shown(1, ack), ACKED_MS));
  t.same(checker.problems, []);
  checker.checkRange(reader, liveRange(shown(1, ack), ACKED_MS));
  checker.checkRange(new Reader("history", KEY), {
    ...whole(shown(1)),
    throughSeq: 1,
  });
  t.same(
    checker.problems.map(({ kind }) => kind),
    ["repeat", "unstored"],
  );
  t.end();
});

t.test("what was not acknowledged is to be sent again, oldest first", (t) => {
  const checker = new HistoryChecker();
  for (const no of [1, 2, 3]) checker.recordSend(sending(no), SENT_MS);
  checker.recordAcknowledgement(sending(2), ackOf(1), ACKED_MS);
  t.same(checker.unacknowledged, [sending(1), sending(3)]);
  checker.recordSend(sending(1), ACKED_MS);
  t.equal(checker.unacknowledged.length, 2, "a retry is no new message");
  t.end();
});
