import { MastraLogger } from '@mastra/core/logger';

/** A logger that keeps what an operator would see: warnings and errors. */
export class RecordingLogger extends MastraLogger {
  /** `level message`, in order. */
  readonly lines: string[] = [];

  override debug(): void {
    // Not what an operator sees.
  }

  override info(): void {
    // Likewise.
  }

  override warn(message: string): void {
    this.lines.push(`warn ${message}`);
  }

  override error(message: string): void {
    this.lines.push(`error ${message}`);
  }
}
