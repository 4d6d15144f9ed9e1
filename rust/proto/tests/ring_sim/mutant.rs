//! Faults that are planted in the simulated ranks, so that the checker can be seen to fail.
//! None is ever active outside the test that plants it.

/// One wrong behaviour of every rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mutant {
    /// Every fifth credit is kept back.
    DropsCredits,
    /// Every seventh rows frame is handed to the engine a second time.
    DeliversTwice,
    /// A plan whose generation is stale is taken all the same.
    SkipsGenerations,
    /// A buffer's credit is given back when the engine takes the buffer, not when it is done.
    ReleasesEarly,
    /// Rows are taken after the ring has ended.
    DeliversAfterFate,
    /// Rows leave without a credit.
    SendsWithoutCredit,
    /// The lead names the rank that reports, not the one that is to blame.
    NamesTheReporter,
    /// No rank minds silence.
    IgnoresSilence,
    /// No rank minds an engine that stands still.
    IgnoresStalls,
    /// A computation that takes longer than the silence limit counts as silence.
    TakesSlowForDead,
    /// Only the rank's own keep-alive is forgotten while its engine computes.
    HushesWhileComputing,
    /// An engine does not cut its state back.
    ForgetsKeeps,
    /// Payload checksums are not looked at.
    SkipsChecksums,
    /// Rows are read only while the engine is idle, so that the kernel ends a full link.
    ReadsOnlyWhenIdle,
    /// The silence before open is counted against the interval that open sets.
    KeepsOldHearing,
    /// A rank that ends closes its links without a word.
    TellsFateToNobody,
}

impl Mutant {
    pub(crate) const ALL: [Self; 16] = [
        Self::DropsCredits,
        Self::DeliversTwice,
        Self::SkipsGenerations,
        Self::ReleasesEarly,
        Self::DeliversAfterFate,
        Self::SendsWithoutCredit,
        Self::NamesTheReporter,
        Self::IgnoresSilence,
        Self::IgnoresStalls,
        Self::TakesSlowForDead,
        Self::HushesWhileComputing,
        Self::ForgetsKeeps,
        Self::SkipsChecksums,
        Self::ReadsOnlyWhenIdle,
        Self::KeepsOldHearing,
        Self::TellsFateToNobody,
    ];
}
