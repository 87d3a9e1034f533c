// Reports outages, during which Redis cannot be used. An outage is reported when it begins, every
// `REPORT_MS` while it lasts, and when it ends, regardless of the number of failed calls. State:
// the current outage.

import { BrokerError, type ErrorCode } from "../broker/errors.ts";
import { precisionOf } from "./causes.ts";
import { causeOf, isExplained, type RedisAway, startFailure } from "./errors.ts";

export interface OutageReport {
  readonly message: string;
  readonly isOver: boolean;
  readonly fields: {
    /** Reason why Redis cannot be used, and what to do. Absent when the outage is over. */
    readonly reason?: string;
    /** Seconds since the outage began. Absent in the first report. */
    readonly awayS?: number;
    /** Number of calls and connection attempts that have failed since the outage began. */
    readonly failures?: number;
  };
}

interface OutagePorts {
  readonly check: () => Promise<void>;
  readonly report: (report: OutageReport) => void;
}

interface CurrentOutage {
  readonly beganMs: number;
  reason: string;
  /** The reason without network addresses. */
  publicReason: string;
  /**
   * Precision of the reason. A less precise reason replaces the current one only after a report.
   */
  precision: number;
  failures: number;
  reportedMs: number;
  checkedFailures: number;
  isChecking: boolean;
  readonly timer: NodeJS.Timeout;
}

const AWAY: ReadonlySet<ErrorCode> = new Set(["unavailable", "too_late"]);
/**
 * Time between two checks. An outage ends if a check succeeds and no call has failed since the
 * previous check.
 */
const CHECK_MS = 1000;
const REPORT_MS = 5000;

export class Outage {
  readonly #ports: OutagePorts;
  #current: CurrentOutage | undefined;
  #isClosed = false;

  constructor(ports: OutagePorts) {
    this.#ports = ports;
  }

  /** Reason why Redis cannot be used, without network addresses, or "" if it can be used. */
  get publicReason(): string {
    return this.#current?.publicReason ?? "";
  }

  /**
   * Counts a failure. Does nothing else if the error has no message about its cause, or if the
   * cause goes away without action by the operator. Otherwise, begins an outage, or replaces the
   * current outage's reason if the error's reason is at least as precise.
   */
  record(error: unknown): void {
    const cause = causeOf(error);
    if (this.#isClosed) return;
    if (!isExplained(error) || cause?.passes === true) return this.count();
    const failure = startFailure(error);
    // A `BrokerError` without a known cause says only which call has failed.
    const precision = error instanceof BrokerError && cause === undefined ? 0 : precisionOf(cause);
    const outage = this.#current;
    if (outage === undefined) this.#begin(failure, precision);
    else if (precision >= outage.precision) {
      outage.reason = failure.message;
      outage.publicReason = failure.publicMessage;
      outage.precision = precision;
    }
    this.count();
  }

  /** Returns true if the error belongs to the current outage, which the log already reports. */
  covers(error: unknown): boolean {
    if (this.#current === undefined) return false;
    const isAway = error instanceof BrokerError && AWAY.has(error.code);
    return isAway || causeOf(error) !== undefined;
  }

  count(): void {
    if (this.#current !== undefined) this.#current.failures += 1;
  }

  close(): void {
    this.#isClosed = true;
    clearInterval(this.#current?.timer);
    this.#current = undefined;
  }

  #begin({ message: reason, publicMessage: publicReason }: RedisAway, precision: number): void {
    const nowMs = performance.now();
    const outage: CurrentOutage = {
      ...{ beganMs: nowMs, reason, publicReason, precision, failures: 0 },
      ...{ reportedMs: nowMs, checkedFailures: -1, isChecking: false },
      timer: setInterval(() => void this.#check(outage), CHECK_MS).unref(),
    };
    this.#current = outage;
    this.#ports.report({ message: "Redis cannot be used", isOver: false, fields: { reason } });
  }

  async #check(outage: CurrentOutage): Promise<void> {
    if (performance.now() - outage.reportedMs >= REPORT_MS) this.#reportThatItLasts(outage);
    const isQuiet = outage.failures === outage.checkedFailures;
    outage.checkedFailures = outage.failures;
    if (!isQuiet || outage.isChecking) return;
    outage.isChecking = true;
    const isOver = await this.#ports.check().then(
      () => outage.failures === outage.checkedFailures,
      () => false,
    );
    outage.isChecking = false;
    if (isOver && this.#current === outage) this.#end(outage);
  }

  #reportThatItLasts(outage: CurrentOutage): void {
    outage.reportedMs = performance.now();
    outage.precision = -1;
    const { reason } = outage;
    const fields = { reason, ...counted(outage) };
    this.#ports.report({ message: "Redis still cannot be used", isOver: false, fields });
  }

  #end(outage: CurrentOutage): void {
    clearInterval(outage.timer);
    this.#current = undefined;
    const fields = counted(outage);
    this.#ports.report({ message: "Redis can be used again", isOver: true, fields });
  }
}

function counted({ beganMs, failures }: CurrentOutage) {
  return { awayS: Math.round((performance.now() - beganMs) / 1000), failures };
}
