/** The ways one HTTP exchange can end, before anyone judges what that means for a line. */

/** How far it came: `Connecting` = not a byte of the request has left us. */
export type Phase = 'Connecting' | 'Sent' | 'Answering';

export type ExchangeEnd =
  | {
      kind: 'response';
      status: number;
      headers: Record<string, string | string[] | undefined>;
      body: Buffer;
      /** The body was longer than allowed and was given up; `body` holds its beginning. */
      tooLarge: boolean;
    }
  | {
      kind: 'failed';
      phase: Phase;
      /** The socket had carried an earlier exchange. */
      reused: boolean;
      error: Error & { code?: string };
      /** Since the request left us; 0 while connecting. */
      millisecondsSinceSent: number;
    }
  | { kind: 'timeout'; phase: Phase }
  | { kind: 'aborted' };
