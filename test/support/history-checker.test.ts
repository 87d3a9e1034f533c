// The history checker reports every kind of problem it knows, and no problem for a correct history.

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

/** Returns message `no` as a correct broker shows it. */
function shown(no: number, changes: Partial<ObservedMessage> = {}): ObservedMessage {
  const { fromUid, clientMsgNo, text } = sending(no);
  return { fromUid, clientMsgNo, text, ...ackOf(no), ...changes };
}

/** Returns a checker that has recorded five messages. `changes` apply to the third. */
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

const fullRange = (...messages: ObservedMessage[]): ObservedRange => ({
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

t.test(
  "no problem is reported for a correct history that is read as a whole, in pieces or live",
  (t) => {
    const all = [1, 2, 3, 4, 5].map((no) => shown(no));
    t.same(kindsOf(checkerOfFive(), fullRange(...all)), []);
    const first: ObservedRange = { ...fullRange(...all.slice(0, 2)), throughSeq: 2 };
    const second: ObservedRange = { ...fullRange(...all.slice(2)), afterSeq: 2 };
    t.same(kindsOf(checkerOfFive(), first, second), []);
    const live = all.map((message) => liveRange(message, ACKED_MS));
    t.same(kindsOf(checkerOfFive(), ...live), []);
    t.equal(checkerOfFive().acknowledgedCount, 5);
    t.end();
  },
);

t.test("an acknowledged message that is missing inside a range is reported as lost", (t) => {
  const run = fullRange(shown(1), shown(2), shown(4), shown(5));
  t.same(kindsOf(checkerOfFive(), run), ["lost"]);
  t.end();
});

t.test("acknowledged messages after the end of the history are reported as lost", (t) => {
  const run = { ...fullRange(shown(1), shown(2), shown(3)), throughSeq: 3 };
  t.same(kindsOf(checkerOfFive(), run), ["lost", "lost"]);
  t.end();
});

t.test("a seq without any acknowledged or shown message is reported as a gap", (t) => {
  const checker = checkerOfFive();
  const late = sending(7);
  checker.recordSend(late, SENT_MS);
  checker.recordAcknowledgement(late, ackOf(7), ACKED_MS);
  const all = [1, 2, 3, 4, 5, 7].map((no) => shown(no));
  t.same(kindsOf(checker, { ...fullRange(...all), throughSeq: 7 }), ["gap"]);
  t.end();
});

t.test("a live message that skips an acknowledged message is reported as a gap", (t) => {
  const checker = checkerOfFive();
  const reader = new Reader("bob", KEY, 3);
  checker.checkRange(reader, liveRange(shown(5), ACKED_MS));
  t.same(
    checker.problems.map(({ kind }) => kind),
    ["gap"],
  );
  t.end();
});

t.test("a message that is shown twice is reported as a repeat", (t) => {
  const twice = [shown(1), shown(2), shown(2), shown(3), shown(4), shown(5)];
  t.same(kindsOf(checkerOfFive(), fullRange(...twice)), ["repeat"]);
  const all = fullRange(...[1, 2, 3, 4, 5].map((no) => shown(no)));
  const repeated = liveRange(shown(5), ACKED_MS);
  t.same(kindsOf(checkerOfFive(), all, repeated), ["repeat"]);
  t.end();
});

t.test("a message that is shown after a later message is reported as a reorder", (t) => {
  const swapped = [shown(1), shown(3), shown(2), shown(4), shown(5)];
  t.same(kindsOf(checkerOfFive(), fullRange(...swapped)), ["reorder"]);
  const live = [1, 2, 4, 3, 5].map((no) => liveRange(shown(no), ACKED_MS));
  t.ok(kindsOf(checkerOfFive(), ...live).includes("reorder"));
  t.end();
});

t.test("a lower message id at a higher seq is reported as a reorder", (t) => {
  const checker = new HistoryChecker();
  const ids = [20, 10];
  const messages = ids.map((messageId, i) => {
    const ack = { messageId, messageSeq: i + 1 };
    checker.recordSend(sending(i), SENT_MS);
    checker.recordAcknowledgement(sending(i), ack, ACKED_MS);
    return shown(i, ack);
  });
  const run = { ...fullRange(...messages), throughSeq: 2 };
  t.same(kindsOf(checker, run), ["reorder"]);
  t.end();
});

t.test(
  "a retry whose acknowledgement differs from the first acknowledgement is reported as changed",
  (t) => {
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
    const unchanged = checkerOfFive();
    unchanged.recordAcknowledgement(sending(2), ackOf(2), ACKED_MS);
    t.same(unchanged.problems, []);
    t.end();
  },
);

t.test("a seq that is acknowledged for two messages is reported as a repeat", (t) => {
  const checker = checkerOfFive();
  checker.recordSend(sending(6), SENT_MS);
  checker.recordAcknowledgement(sending(6), ackOf(5), ACKED_MS);
  t.same(
    checker.problems.map(({ kind }) => kind),
    ["repeat"],
  );
  t.end();
});

t.test(
  "a message whose text or id differs from the acknowledged text or id is reported as changed",
  (t) => {
    const second = [shown(1), shown(2), shown(4), shown(5)];
    for (const changes of [{ text: "other" }, { messageId: 102.5 }]) {
      const messages = [...second, shown(3, changes)];
      messages.sort((a, b) => a.messageSeq - b.messageSeq);
      t.same(kindsOf(checkerOfFive(), fullRange(...messages)), ["changed"]);
    }
    t.end();
  },
);

t.test("a message that is shown at a second seq is reported as a duplicate", (t) => {
  const messages = [1, 2, 3, 4, 5].map((no) => shown(no));
  const copy = shown(2, ackOf(6));
  const run = { ...fullRange(...messages, copy), throughSeq: 6 };
  t.same(kindsOf(checkerOfFive(), run), ["duplicate"]);
  t.end();
});

t.test("a message that nobody sent is reported as unknown", (t) => {
  const messages = [1, 2, 3, 4, 5, 6].map((no) => shown(no));
  const run = { ...fullRange(...messages), throughSeq: 6 };
  t.ok(kindsOf(checkerOfFive(), run).includes("unknown"));
  t.end();
});

t.test(
  "a missing message is not reported if it may have expired, and an expired message that is still shown is reported",
  (t) => {
    const checker = () => checkerOfFive({ expireS: 1 });
    const without = fullRange(shown(1), shown(2), shown(4), shown(5));
    t.same(kindsOf(checker(), { ...without, readEndedAtMs: SENT_MS + 999 }), ["lost"]);
    t.same(kindsOf(checker(), { ...without, readEndedAtMs: SENT_MS + 1000 }), []);
    const all = fullRange(...[1, 2, 3, 4, 5].map((no) => shown(no)));
    const readEndedAtMs = ACKED_MS + 5000;
    const early = { ...all, readEndedAtMs, readStartedAtMs: ACKED_MS + 999 };
    t.same(kindsOf(checker(), early), []);
    const late = { ...all, readEndedAtMs, readStartedAtMs: ACKED_MS + 1000 };
    t.same(kindsOf(checker(), late), ["expired"]);
    t.end();
  },
);

t.test("a message with noPersist is reported if it is pushed twice or is in the history", (t) => {
  const checker = new HistoryChecker();
  const unstoredMessage = sending(1, { noPersist: true });
  checker.recordSend(unstoredMessage, SENT_MS);
  const ack = { messageId: 101, messageSeq: 0 };
  checker.recordAcknowledgement(unstoredMessage, ack, ACKED_MS);
  const reader = new Reader("bob", KEY);
  checker.checkRange(reader, liveRange(shown(1, ack), ACKED_MS));
  t.same(checker.problems, []);
  checker.checkRange(reader, liveRange(shown(1, ack), ACKED_MS));
  checker.checkRange(new Reader("history", KEY), {
    ...fullRange(shown(1)),
    throughSeq: 1,
  });
  t.same(
    checker.problems.map(({ kind }) => kind),
    ["repeat", "unstored"],
  );
  t.end();
});

t.test("messages without an acknowledgement are listed oldest first", (t) => {
  const checker = new HistoryChecker();
  for (const no of [1, 2, 3]) checker.recordSend(sending(no), SENT_MS);
  checker.recordAcknowledgement(sending(2), ackOf(1), ACKED_MS);
  t.same(checker.unacknowledged, [sending(1), sending(3)]);
  checker.recordSend(sending(1), ACKED_MS);
  t.equal(checker.unacknowledged.length, 2, "a retry is not a new message");
  t.end();
});
