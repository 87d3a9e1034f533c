// Waits for a promise for a limited time.

/** Settles with `work`, or resolves after `ms`. `work` continues after that time. */
export async function waitAtMost(work: Promise<unknown>, ms: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const limit = new Promise<void>((resolve) => {
    // After a long turn, the timer would otherwise fire before the input that has arrived is read.
    timer = setTimeout(() => setImmediate(resolve), ms);
  });
  try {
    await Promise.race([work, limit]);
  } finally {
    clearTimeout(timer);
  }
}
